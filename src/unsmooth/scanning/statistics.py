"""Sums over sequences, and nothing else: what a scan keeps while it runs, reducible over ranks.

Shape suffixes: K (layer, site) places, S stages, M metrics, B sequences of a batch, L residual layers, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor
from torchmetrics import Metric

# Longer sequences share the last bin; only chance levels and the manifest's token count depend on it.
LENGTH_BINS = 131_072
# Of these the least of all processes counts, of the others the sum.
_LEAST = ("first_nonfinite",)


@dataclass(frozen=True)
class Place:
    """Where a tensor was seen; places of one stage have tensors of one shape."""

    layer: int
    site: str
    stage: int | None = None


@dataclass(frozen=True)
class Summary:
    """Mean over sequences with its 95 % Student-t interval."""

    mean: float
    std: float
    low: float
    high: float
    sequences: int


class RunningSums:
    """Running sums of per-sequence values for every place and metric; empty ones are laid out by a subclass."""

    count: Tensor
    total: Tensor
    square: Tensor
    change_count: Tensor
    change_total: Tensor
    change_square: Tensor
    tokens: Tensor
    zero_tokens: Tensor
    nonfinite: Tensor
    first_nonfinite: Tensor
    lengths: Tensor
    short: Tensor

    def update(
        self,
        values_KMB: Tensor,
        finite_KB: Tensor,
        zeros_KB: Tensor,
        lengths_SB: Tensor,
        stage_K: Tensor,
        batch_B: Tensor,
        ends: tuple[int, int] | None,
    ) -> None:
        """Add the sequences of one batch or more.

        Args:
            values_KMB: Per-sequence values.
            finite_KB: Whether a sequence's activations at a place were free of NaN and Inf.
            zeros_KB: Tokens without direction.
            lengths_SB: Tokens measured per sequence; sequences of fewer than two are left out of their stage.
            stage_K: The stage of each place, from 0.
            batch_B: Number of each sequence's batch, for naming the first bad one.
            ends: Indices of the first and last residual layer, whose paired difference is kept.
        """
        values = values_KMB.double()
        usable_SB = lengths_SB >= 2
        lengths_KB, enough_KB = lengths_SB[stage_K], usable_SB[stage_K]
        usable_KB = finite_KB & enough_KB
        # A metric may be undefined (HFC/LFC of centred tokens) where the activations are fine.
        counted = usable_KB.unsqueeze(1) & values.isfinite()
        kept = torch.where(counted, values, 0.0)
        self.count += counted.sum(dim=-1)
        self.total += kept.sum(dim=-1)
        self.square += kept.square().sum(dim=-1)
        self.tokens += (usable_KB * lengths_KB).sum(dim=-1)
        self.zero_tokens += (usable_KB * zeros_KB).sum(dim=-1)
        bad_KB = ~finite_KB & enough_KB
        self.nonfinite += bad_KB.sum(dim=-1)
        first_K = torch.where(bad_KB, batch_B.to(self.first_nonfinite.dtype), math.inf).amin(dim=-1)
        self.first_nonfinite = torch.minimum(self.first_nonfinite, first_K)
        self.short += (~usable_SB[0]).sum()
        bins = lengths_SB.long().clamp_max(self.lengths.shape[1] - 1)
        self.lengths.scatter_add_(1, bins, usable_SB.double())
        if ends is not None:
            first, last = ends
            both = counted[first] & counted[last]
            change = torch.where(both, kept[last] - kept[first], 0.0)
            self.change_count += both.sum(dim=-1)
            self.change_total += change.sum(dim=-1)
            self.change_square += change.square().sum(dim=-1)

    def length_counts(self, stage: int = 0) -> dict[int, int]:
        """Number of tokens to number of sequences that had so many in a stage."""
        counts = self.lengths[stage]
        return {int(length): int(counts[length]) for length in counts.nonzero().flatten()}

    def summaries(self) -> list[list[Summary]]:
        """Mean and interval of every number, by place and metric; read all at once, which is a wait for a GPU."""
        sums_KM3 = torch.stack([self.count, self.total, self.square], dim=-1)
        return [[summarise(*sums) for sums in metrics] for metrics in sums_KM3.tolist()]

    def by_name(self) -> dict[str, Tensor]:
        """All of them."""
        return {name: getattr(self, name) for name in RunningSums.__annotations__}

    def become_total(self, parts: Sequence[Mapping[str, Tensor]]) -> None:
        """Hold what several processes have together, each `by_name`, added in the order given."""
        for name in RunningSums.__annotations__:
            sums = torch.stack([part[name] for part in parts])
            setattr(self, name, sums.amin(dim=0) if name in _LEAST else sums.sum(dim=0))

    def change(self, metric: int) -> Summary:
        """Last minus first residual layer, paired by sequence."""
        return summarise(
            float(self.change_count[metric]),
            float(self.change_total[metric]),
            float(self.change_square[metric]),
        )


class LocalSums(RunningSums):
    """Sums of one look, on the CPU: made in a tenth of the time that a torchmetrics metric takes to be made."""

    def __init__(self, places: int, metrics: int, stages: int = 1) -> None:
        for name, empty in _laid_out(places, metrics, stages, length_bins=1).items():
            setattr(self, name, empty)


class ScanState(RunningSums, Metric):
    """Sums that torchmetrics adds up over ranks, so N processes give the numbers of one."""

    full_state_update = False

    def __init__(self, places: int, metrics: int, stages: int = 1, length_bins: int = LENGTH_BINS) -> None:
        super().__init__()
        for name, empty in _laid_out(places, metrics, stages, length_bins).items():
            self.add_state(name, empty, dist_reduce_fx="min" if name in _LEAST else "sum")

    def compute(self) -> ScanState:
        """The states themselves; torchmetrics has reduced them over ranks by now."""
        return self


def _laid_out(places: int, metrics: int, stages: int, length_bins: int) -> dict[str, Tensor]:
    """Empty sums by name."""
    shapes = {
        **dict.fromkeys(("count", "total", "square"), (places, metrics)),
        **dict.fromkeys(("change_count", "change_total", "change_square"), (metrics,)),
        **dict.fromkeys(("tokens", "zero_tokens", "nonfinite", "first_nonfinite"), (places,)),
        "lengths": (stages, length_bins),
        "short": (),
    }
    return {
        name: torch.full(shape, math.inf if name in _LEAST else 0.0, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def summarise(count: float, total: float, square: float) -> Summary:
    """Mean, sample deviation and 95 % t interval from sums.

    >>> found = summarise(3, 6.0, 14.0)  # values 1, 2, 3
    >>> found.mean, found.std, round(found.low, 3), round(found.high, 3)
    (2.0, 1.0, -0.484, 4.484)
    """
    if count < 1:
        return Summary(math.nan, math.nan, math.nan, math.nan, 0)
    mean = total / count
    if count < 2:
        return Summary(mean, math.nan, math.nan, math.nan, int(count))
    std = math.sqrt(max(square - count * mean * mean, 0.0) / (count - 1.0))
    half = float(stdtrit(count - 1.0, 0.975)) * std / math.sqrt(count)
    return Summary(mean, std, mean - half, mean + half, int(count))
