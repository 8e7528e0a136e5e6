"""From what was seen of some batches to the sums of a scan.

Small batches wait for each other: a call into torch costs more than the few numbers of one text.

Shape suffixes: S batches, K places of a stage, P places measured together, L residual layers, B sequences of a batch
or, in sums, of all S batches; C the four cosines of `COSINES`; PB or SKB for one row after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.functional import BoundMetric, Tokens, mean_cosine
from unsmooth.functional._blocks import Sums, light_tokens, one_after_another
from unsmooth.scanning.calling import Selection
from unsmooth.scanning.computing import computed
from unsmooth.scanning.confounds import COSINES, ConfoundBatch, ConfoundState
from unsmooth.scanning.statistics import Place, RunningSums

ENOUGH = 1 << 20
"""Numbers of a layer, in batches that are over, that wait for no more."""


@dataclass(frozen=True)
class SeenLayers:
    """What is kept of tensors of one shape until their batch is added, place after place.

    Args:
        places: Where they were seen, all in one stage.
        shape: Of the measured tokens of one (batch, tokens, dim).
        width: All tokens of one.
        sums: What metrics read that do without the vectors, norms, and the number of tokens.
        direct: Values of the other metrics by their number.
        confounds: What stands out; None where nobody asked.
    """

    places: Sequence[Place]
    shape: torch.Size
    width: int
    sums: Sums
    direct: Mapping[int, Tensor]
    confounds: ConfoundBatch | None


@dataclass(frozen=True)
class SeenBatch:
    """A batch that is over; `real_BN` marks what is not padding, None where nothing is known to be."""

    number: int
    layers: Sequence[SeenLayers]
    selection: Selection
    real_BN: Tensor | None

    @property
    def shapes(self) -> list[torch.Size]:
        """Batches of the same shapes can be added together."""
        return [layers.shape for layers in self.layers]

    @property
    def sequences(self) -> int:
        """How many there are."""
        return self.layers[0].shape[0]

    @property
    def numbers(self) -> int:
        """How many a layer has."""
        return self.layers[0].shape.numel()

    def at(self, places: Set[Place]) -> list[SeenLayers]:
        """What was seen in the stage of these places."""
        return [layers for layers in self.layers if layers.places[0] in places]

    def where(self, layers: SeenLayers, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Position of each measured token among the real ones (B, N), and its id where there are ids."""
        window, ids_BN = self.selection.window, self.selection.ids_BN
        if self.real_BN is None:
            positions_BN = torch.arange(layers.width).expand(self.sequences, -1)
        else:
            positions_BN = self.real_BN.long().cumsum(dim=1) - 1
        return positions_BN[:, window].to(device), None if ids_BN is None else ids_BN[:, window].to(device)


@dataclass(frozen=True)
class Values:
    """What batches of the same shapes come to, still where they were measured.

    Args:
        together: Of metrics (K, M, B), which are finite (K, B), how many tokens are zero (K, B), how many there are.
        stage_of: The stage of each place.
        numbers: The batch of each sequence.
    """

    together: Sequence[Tensor]
    stage_of: Sequence[int]
    numbers: Sequence[int]


@dataclass(frozen=True)
class Adder:
    """Adds batches to the sums of a scan.

    Args:
        metrics: All metrics.
        stages: The places of each stage.
        ends: Indices of the first and last residual layer among all places.
        state: Sums of metrics, which may be kept elsewhere than on `device`.
        confounds: Sums of what stands out; None where nobody asked.
        device: Where metrics are evaluated.
    """

    metrics: Sequence[BoundMetric]
    stages: Sequence[Sequence[Place]]
    ends: tuple[int, int] | None
    state: RunningSums
    confounds: ConfoundState | None
    device: torch.device

    def add(self, values: Values) -> None:
        """Add what batches of the same shapes come to; where sums are kept elsewhere, a device is waited for here."""
        home = self.state.count.device
        stage_K, number_B = (torch.tensor(row, device=home) for row in (values.stage_of, values.numbers))
        values_KMB, finite_KB, zeros_KB, lengths_SB = _brought(values.together, home)
        self.state.update(values_KMB, finite_KB, zeros_KB, lengths_SB, stage_K, number_B, self.ends)

    def values(self, batches: Sequence[SeenBatch]) -> Values:
        """What batches of the same shapes come to."""
        values, finite, zeros, lengths, stage_of = [], [], [], [], list[int]()
        for stage, places in enumerate(self.stages):
            here = frozenset(places)
            seen = [layers for batch in batches for layers in batch.at(here)]
            tokens = self._as_one_batch(seen)

            def by_place(numbers_SKB: Tensor, batches: int = len(batches), places: int = len(places)) -> Tensor:
                return numbers_SKB.view(batches, places, -1).transpose(0, 1).reshape(places, -1)

            each = [self._values(number, metric, tokens, seen) for number, metric in enumerate(self.metrics)]
            values.append(torch.stack([by_place(one.double()) for one in each], dim=1))
            finite.append(by_place(tokens.norms_BN.sum(dim=1).isfinite()))
            zeros.append(by_place(tokens.count_B - tokens.nonzero_B))
            lengths.append(by_place(tokens.count_B)[0])
            stage_of += [stage] * len(places)
            if self.confounds is not None:
                self._add_confounds(places, batches, seen, tokens, finite[-1] & (lengths[-1] >= 2), by_place)
        together = (*map(one_after_another, (values, finite, zeros)), torch.stack(lengths))
        numbers = [batch.number for batch in batches for _ in range(batch.sequences)]
        return Values(together, stage_of, numbers)

    def _as_one_batch(self, seen: Sequence[SeenLayers]) -> Tokens:
        """Sums of all batches and places: metrics that read nothing else are then evaluated once."""
        sums = {
            name: one_after_another([layers.sums[name].to(self.device) for layers in seen]) for name in seen[0].sums
        }
        return light_tokens(sums, (len(sums["count_B"]), *seen[0].shape[1:]), sums["norms_BN"].dtype)

    def _values(self, number: int, metric: BoundMetric, tokens: Tokens, seen: Sequence[SeenLayers]) -> Tensor:
        """Values of one metric, of all batches and places."""
        if number in seen[0].direct:
            return one_after_another([layers.direct[number].to(self.device) for layers in seen])
        return computed(metric, tokens)

    def _add_confounds(
        self,
        places: Sequence[Place],
        batches: Sequence[SeenBatch],
        seen: Sequence[SeenLayers],
        tokens: Tokens,
        usable_KB: Tensor,
        by_place: Callable[[Tensor], Tensor],
    ) -> None:
        """Add the residual layers of a stage to what stands out."""
        assert self.confounds is not None
        residual = [index for index, place in enumerate(places) if place.site == "residual"]
        if not residual:
            return
        here = frozenset(places)
        sizes = [len(layers.sums["count_B"]) for layers in seen]
        cosines = [
            plain.expand(len(COSINES), -1)
            if layers.confounds is None or layers.confounds.cosines_CB is None
            else layers.confounds.cosines_CB.to(self.device)
            for layers, plain in zip(seen, torch.split(mean_cosine(tokens), sizes), strict=True)
        ]
        cosines_CKB = torch.stack([by_place(one) for one in torch.cat(cosines, dim=1)])
        every = (place for places in self.stages for place in places if place.site == "residual")
        rows = {place: row for row, place in enumerate(every) if place in here}
        self.confounds.update(cosines_CKB[:, residual].transpose(0, 1), usable_KB[residual], list(rows.values()))
        parts_KB = torch.split(usable_KB, [batch.sequences for batch in batches], dim=1)
        for batch, part_KB in zip(batches, parts_KB, strict=True):
            seen = batch.at(here)
            usable = torch.split(part_KB, [len(layers.places) for layers in seen])
            for layers, usable_PB in zip(seen, usable, strict=True):
                self._count_confounds(batch, layers, usable_PB, rows)

    def _count_confounds(
        self, batch: SeenBatch, layers: SeenLayers, usable_PB: Tensor, rows: Mapping[Place, int]
    ) -> None:
        """Count the dimensions and tokens that stood out, at the places that have a row."""
        if layers.confounds is None or self.confounds is None:
            return
        by_place, usable_PB1 = (len(layers.places), batch.sequences, -1), usable_PB.unsqueeze(-1)
        chosen = [number for number, place in enumerate(layers.places) if place in rows]
        at = [rows[layers.places[number]] for number in chosen]
        if layers.confounds.outlier_BD is not None:
            outlier_PBD = layers.confounds.outlier_BD.to(self.device).view(by_place) & usable_PB1
            self.confounds.count_dimensions(at, outlier_PBD.sum(dim=1)[chosen])
        if layers.confounds.massive_BN is not None:
            massive_PBN = layers.confounds.massive_BN.to(self.device).view(by_place) & usable_PB1
            self.confounds.count_tokens(at, massive_PBN[chosen], *batch.where(layers, self.device))


def _brought(tensors: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """The tensors on a device: in one piece, because a GPU is waited for once for each that is brought."""
    if all(tensor.device == device for tensor in tensors):
        return tensors
    brought = torch.cat([tensor.double().flatten() for tensor in tensors]).to(device)
    parts = torch.split(brought, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]
