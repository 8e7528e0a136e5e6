"""Massive tokens and outlier dimensions: the largest confound of a language model's similarity curve.

One token with a huge norm dominates every norm-weighted number, one huge feature every cosine
(Sun et al. 2024, arXiv 2402.17762; Timkey & van Schijndel 2021, arXiv 2109.04404). The scan names both and gives
the mean cosine without them.

Shape suffixes: L residual layers, B sequences, N tokens, D dimensions, C the four cosines of `COSINES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

from unsmooth.functional import Tokens
from unsmooth.scanning.result import Confound, MassiveToken, OutlierDimension

MASSIVE_TOKEN_RATIO = 5.0
"""A token is massive when its norm is at least this many times the median norm of its sequence's tokens."""
OUTLIER_DIMENSION_RATIO = 5.0
"""A dimension is an outlier when its mean absolute value over a sequence is at least this many times the median one."""
COSINES = ("mean_cosine", "without_massive_tokens", "without_outlier_dimensions", "without_both")
# Later positions share the last bin.
POSITION_BINS = 1024
# What is rarer than this is not worth a name in a table.
NAMED_SHARE = 0.05
NAMED_MOST = 5


@dataclass(frozen=True)
class ConfoundBatch:
    """One residual layer of one batch."""

    cosines_CB: Tensor
    massive_BN: Tensor
    outlier_BD: Tensor


def find_confounds(tokens: Tokens) -> ConfoundBatch:
    """Cosines with and without what stands out in each sequence."""
    massive_BN = _massive(tokens)
    outlier_BD = _outliers(tokens)
    keep_BN = tokens.inverse_norms_BN * ~massive_BN
    plain = _cosine(tokens.unit_sum_BD, tokens.nonzero_B, tokens.count_B)
    # Asking the CPU is free, and most layers have nothing that stands out.
    on_cpu = massive_BN.device.type == "cpu"
    if on_cpu and not massive_BN.any():
        without_tokens = plain
    else:
        unit_sum = _weighted_sum(tokens.values_BND, keep_BN)
        without_tokens = _cosine(unit_sum, _kept(keep_BN), tokens.count_B - massive_BN.sum(dim=1))
    if on_cpu and not outlier_BD.any():
        without_dimensions, without_both = plain, without_tokens
    else:
        without_dimensions, without_both = _without_dimensions(tokens, massive_BN, outlier_BD)
    cosines = torch.stack([plain, without_tokens, without_dimensions, without_both])
    return ConfoundBatch(cosines, massive_BN, outlier_BD)


def _massive(tokens: Tokens) -> Tensor:
    norms = tokens.norms_BN
    known = norms if tokens.mask_BN is None else norms.masked_fill(~tokens.mask_BN, torch.nan)
    median_B1: Tensor = torch.nanmedian(known, dim=1, keepdim=True).values
    return (norms >= MASSIVE_TOKEN_RATIO * median_B1) & (norms > 0)


def _outliers(tokens: Tokens) -> Tensor:
    size_BD, _ = tokens.absolute_sums
    median_B1: Tensor = torch.median(size_BD, dim=1, keepdim=True).values
    return (size_BD >= OUTLIER_DIMENSION_RATIO * median_B1) & (size_BD > 0)


def _without_dimensions(tokens: Tokens, massive_BN: Tensor, outlier_BD: Tensor) -> tuple[Tensor, Tensor]:
    rest = Tokens(tokens.values_BND * ~outlier_BD.unsqueeze(1))
    keep_BN = rest.inverse_norms_BN * ~massive_BN
    return (
        _cosine(rest.unit_sum_BD, rest.nonzero_B, tokens.count_B),
        _cosine(_weighted_sum(rest.values_BND, keep_BN), _kept(keep_BN), tokens.count_B - massive_BN.sum(dim=1)),
    )


def _weighted_sum(values_BND: Tensor, weights_BN: Tensor) -> Tensor:
    # Not a matrix product: autocast would do that in bfloat16 and a GPU in TF32.
    return (values_BND * weights_BN.unsqueeze(-1)).sum(dim=1)


def _kept(weights_BN: Tensor) -> Tensor:
    return (weights_BN > 0).sum(dim=1)


def _cosine(unit_sum_BD: Tensor, nonzero_B: Tensor, count_B: Tensor) -> Tensor:
    """Mean cosine over pairs i ≠ j; NaN, hence not counted, where fewer than two tokens are left."""
    pairs = count_B * (count_B - 1.0)
    mean = (unit_sum_BD.square().sum(dim=-1) - nonzero_B) / pairs.clamp_min(1.0)
    return torch.where(pairs > 0, mean, torch.nan)


class ConfoundState(Metric):
    """Running sums of the four cosines and of where things stood out."""

    full_state_update = False
    count: Tensor
    total: Tensor
    sequences: Tensor
    positions: Tensor
    dimensions: Tensor
    ids: Tensor

    def __init__(self, layers: int, dim: int, vocabulary: int) -> None:
        super().__init__()
        shapes = {
            "count": (layers, len(COSINES)),
            "total": (layers, len(COSINES)),
            "sequences": (layers,),
            "positions": (layers, POSITION_BINS),
            "dimensions": (layers, dim),
            "ids": (layers, vocabulary),
        }
        for name, shape in shapes.items():
            kind = torch.float64 if name in ("count", "total") else torch.int64
            self.add_state(name, torch.zeros(shape, dtype=kind), dist_reduce_fx="sum")

    def update(
        self, layer: int, found: ConfoundBatch, usable_B: Tensor, position_BN: Tensor, ids_BN: Tensor | None
    ) -> None:
        """Add one residual layer of one batch; sequences with False in `usable_B` are left out."""
        values_CB = found.cosines_CB.double()
        counted = usable_B & values_CB.isfinite()
        self.count[layer] += counted.sum(dim=-1)
        self.total[layer] += torch.where(counted, values_CB, 0.0).sum(dim=-1)
        self.sequences[layer] += usable_B.sum()
        self.dimensions[layer] += (found.outlier_BD & usable_B.unsqueeze(-1)).sum(dim=0)
        massive_BN = found.massive_BN & usable_B.unsqueeze(-1)
        if massive_BN.device.type == "cpu" and not massive_BN.any():
            return
        hits = massive_BN.flatten().long()
        self.positions[layer].scatter_add_(0, position_BN.flatten().clamp(0, POSITION_BINS - 1), hits)
        if ids_BN is not None and self.ids.shape[1]:
            self.ids[layer].scatter_add_(0, ids_BN.flatten().clamp(0, self.ids.shape[1] - 1), hits)

    def compute(self) -> ConfoundState:
        """The states themselves; torchmetrics has reduced them over ranks by now."""
        return self

    def confound(self, index: int, layer: int, text_of: Callable[[int], str] | None) -> Confound:
        """Read one layer off the sums."""
        means = dict(zip(COSINES, (self.total[index] / self.count[index]).tolist(), strict=True))
        sequences = max(int(self.sequences[index]), 1)
        massive = [MassiveToken(position, share) for position, share in _top(self.positions[index], sequences)]
        if text_of is not None:
            massive += [MassiveToken(None, share, text_of(token)) for token, share in _top(self.ids[index], sequences)]
        outliers = [OutlierDimension(number, share) for number, share in _top(self.dimensions[index], sequences)]
        return Confound(
            layer=layer,
            mean_cosine=means["mean_cosine"],
            without_massive_tokens=means["without_massive_tokens"],
            without_outlier_dimensions=means["without_outlier_dimensions"],
            without_both=means["without_both"],
            massive_tokens=tuple(massive),
            outlier_dimensions=tuple(outliers),
        )


def _top(counts: Tensor, sequences: int) -> list[tuple[int, float]]:
    """The most frequent entries with their count per sequence."""
    if counts.numel() == 0:
        return []
    values, indices = counts.topk(min(NAMED_MOST, counts.numel()))
    shares = [(int(index), int(value) / sequences) for value, index in zip(values, indices, strict=True)]
    return [(index, share) for index, share in shares if share >= NAMED_SHARE]
