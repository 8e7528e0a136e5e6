"""The observer of a scan: turns each tensor into a few numbers per sequence on the spot and lets it go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import BoundMetric, Tokens
from unsmooth.functional._blocks import Shelf, Workspace, blocks, fill_in, join_sums, measure, shared_sums
from unsmooth.models.anatomy import Watch
from unsmooth.scanning.calling import EVERYTHING, Selection
from unsmooth.scanning.confounds import ConfoundBatch, ConfoundState, find_confounds, join_confounds
from unsmooth.scanning.statistics import Place, ScanState


@dataclass(frozen=True)
class _Seen:
    """What is kept of one tensor until its batch is over: sums per sequence.

    `direct` holds the values of metrics that read the vectors themselves, by their number.
    """

    sums: Tokens
    direct: Mapping[int, Tensor]
    confounds: ConfoundBatch | None


@dataclass
class Collector:
    """Measures every tensor of the current batch, and adds the batch to the sums when it is over."""

    metrics: Sequence[BoundMetric]
    vocabulary: int
    device: torch.device
    names_confounds: bool = True
    watch: Watch | None = None
    state: ScanState | None = None
    confounds: ConfoundState | None = None
    places: tuple[Place, ...] = ()
    dim: int = 0
    _seen: dict[Place, _Seen] = field(default_factory=dict)
    _previous: dict[str, Tokens] = field(default_factory=dict)
    _selection: Selection = EVERYTHING
    _workspace: Workspace = field(default_factory=Workspace)
    _shelf: Shelf = field(default_factory=Shelf)
    _lengths_B: Tensor | None = None
    _width: int = 0

    def begin(self, selection: Selection) -> None:
        """Start a batch."""
        self._seen.clear()
        self._previous.clear()
        self._shelf.clear()
        self._selection, self._lengths_B = selection, None

    def __call__(self, layer: int, site: str, tensor: Tensor) -> None:
        """Measure one tensor (batch, tokens, dim)."""
        tokens = self._tokens(tensor)
        if self._lengths_B is None:
            self._lengths_B, self._width, self.dim = tokens.count_B, tensor.shape[1], tensor.shape[2]
        confounds = self._measure(tokens, with_confounds=self.names_confounds and site == "residual")
        direct = {
            number: self._value(metric, site, tokens)
            for number, metric in enumerate(self.metrics)
            if not metric.reads_only_sums
        }
        self._seen[Place(layer, site)] = _Seen(shared_sums(tokens, self._shelf), direct, confounds)
        if any(metric.metric.reads == "pair" for metric in self.metrics):
            self._previous[site] = Tokens(tokens.input_BND, tokens.mask_BN)

    def _measure(self, tokens: Tokens, with_confounds: bool) -> ConfoundBatch | None:
        """Fill in the sums that metrics share, and look for what stands out while the vectors are at hand."""
        sums, confounds = [], []
        for block in blocks(tokens, self._workspace):
            sums.append(measure(block))
            if with_confounds:
                confounds.append(find_confounds(block, sums[-1]))
        fill_in(tokens, sums)
        return join_confounds(confounds).on(self._shelf) if confounds else None

    def _tokens(self, tensor: Tensor) -> Tokens:
        selected, window, width = self._selected(), self._selection.window, self._selection.width
        if width is not None and width != tensor.shape[1]:
            raise expected(
                f"a mask for the {tensor.shape[1]} tokens of the model's hidden states",
                f"one for {width}",
                'data with "attention_mask" or "token_mask" of that width',
            )
        mask = None if selected is None else selected[:, window].to(tensor.device, non_blocking=True)
        return Tokens(tensor[:, window], mask)

    def _selected(self) -> Tensor | None:
        """The batch's own mask, else the one that the model handed to its blocks."""
        handed = self.watch.real_tokens_BN if self.watch else None
        return handed if self._selection.real_BN is None and handed is not None else self._selection.selected_BN

    def _value(self, metric: BoundMetric, site: str, tokens: Tokens) -> Tensor:
        if metric.metric.reads == "tokens":
            return metric(tokens)
        before = self._previous.get(site)
        # The first layer of a site has no layer before it; NaN is not counted.
        return metric(before, tokens) if before is not None else torch.full_like(tokens.count_B, math.nan)

    def end(self, batch: int) -> None:
        """Add the batch to the sums."""
        if not self._seen or self._lengths_B is None:
            raise UnsmoothError(
                "Expected the model to call its blocks but none was called. "
                "Try another blocks pattern, or data that reaches them."
            )
        places = tuple(self._seen)
        if self.state is None:
            self.start(places, self.dim)
        if places != self.places:
            raise UnsmoothError(
                f"Expected the {len(self.places)} places of the first batch but got {len(places)} on batch {batch}. "
                f"Try a model whose depth does not change from batch to batch."
            )
        self._add(batch)
        self._seen.clear()
        self._previous.clear()

    def start(self, places: tuple[Place, ...], dim: int) -> None:
        """Lay out empty sums for these places."""
        self.places, self.dim = places, dim
        residual = sum(place.site == "residual" for place in places)
        self.state = ScanState(len(places), len(self.metrics)).to(self.device)
        if self.names_confounds:
            self.confounds = ConfoundState(residual, dim, self.vocabulary).to(self.device)

    def _add(self, batch: int) -> None:
        assert self.state is not None
        assert self._lengths_B is not None
        seen = [self._seen[place] for place in self.places]
        lengths_B = self._lengths_B.to(self.device)
        sums = join_sums([item.sums for item in seen], self.device)
        by_place = (len(seen), -1)
        finite_KB = sums.norms_BN.sum(dim=1).isfinite().view(by_place)
        zeros_KB = (sums.count_B - sums.nonzero_B).view(by_place)
        values = [self._joined(number, metric, sums, seen).view(by_place) for number, metric in enumerate(self.metrics)]
        self.state.update(torch.stack(values, dim=1), finite_KB, zeros_KB, lengths_B, batch, self.ends)
        residual = [index for index, item in enumerate(seen) if item.confounds is not None]
        if residual and self.confounds is not None:
            found = [item.confounds for item in seen if item.confounds is not None]
            self.confounds.update(found, finite_KB[residual] & (lengths_B >= 2), *self._positions())

    def _joined(self, number: int, metric: BoundMetric, sums: Tokens, seen: Sequence[_Seen]) -> Tensor:
        """Values of one metric at all places, place after place."""
        if metric.reads_only_sums:
            return metric(sums).double()
        return torch.cat([item.direct[number].to(self.device) for item in seen]).double()

    @property
    def ends(self) -> tuple[int, int] | None:
        """Indices of the first and last residual layer among the places."""
        residual = [index for index, place in enumerate(self.places) if place.site == "residual"]
        return (residual[0], residual[-1]) if len(residual) > 1 else None

    def _positions(self) -> tuple[Tensor, Tensor | None]:
        """Position of each measured token among the real ones, and its id where there are ids."""
        assert self._lengths_B is not None
        window, ids = self._selection.window, self._selection.ids_BN
        real = self._selection.real_BN
        if real is None and self.watch is not None:
            real = self.watch.real_tokens_BN
        if real is None:
            positions = torch.arange(self._width, device=self.device).expand(self._lengths_B.shape[0], -1)
        else:
            positions = (real.long().cumsum(dim=1) - 1).to(self.device)
        return positions[:, window], None if ids is None else ids[:, window].to(self.device)
