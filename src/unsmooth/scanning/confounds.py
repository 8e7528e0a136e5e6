"""Massive tokens and outlier dimensions: the largest confound of a language model's similarity curve.

One token with a huge norm dominates every norm-weighted number, one huge feature every cosine
(Sun et al. 2024, arXiv 2402.17762; Timkey & van Schijndel 2021, arXiv 2109.04404). The scan names both and gives
the mean cosine without them.

Shape suffixes: L residual layers, B sequences, N tokens, D dimensions, C the four cosines of `COSINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

from unsmooth.functional._blocks import Block, Shelf, Sums
from unsmooth.functional._tokens import euclidean_norm, inverse
from unsmooth.scanning.result import Confound, MassiveToken, OutlierDimension

MASSIVE_TOKEN_RATIO = 5.0
"""A token is massive when its norm is at least this many times the median norm of its sequence's tokens."""
OUTLIER_DIMENSION_RATIO = 5.0
"""A dimension is an outlier when its mean absolute value over a sequence is at least this many times the median one."""
COSINES = ("mean_cosine", "without_massive_tokens", "without_outlier_dimensions", "without_both")
# A difference of squares keeps its digits while this share of a token is left.
TRUSTED_SHARE = 0.05
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

    def on(self, shelf: Shelf) -> ConfoundBatch:
        """The same, kept on a shelf."""
        return ConfoundBatch(shelf.keep(self.cosines_CB), shelf.keep(self.massive_BN), shelf.keep(self.outlier_BD))


def find_confounds(block: Block, sums: Sums) -> ConfoundBatch:
    """Cosines with and without what stands out in each sequence."""
    massive_BN, outlier_BD = _massive(block, sums), _outliers(sums)
    weights_BN = inverse(sums.norms_BN)
    plain = _cosine(sums.unit_sum_BD, weights_BN, block.count_B)
    # One question to the device: most layers have nothing that stands out, and looking for more costs several passes.
    some_massive, some_outlier = torch.stack([massive_BN.any(), outlier_BD.any()]).tolist()
    fewer_B = block.count_B - massive_BN.sum(dim=1) if some_massive else block.count_B

    def cosine(weights_BN: Tensor, count_B: Tensor, kept_BD: Tensor | None = None) -> Tensor:
        unit_sum_BD = block.weighted_sums(weights_BN)[0]
        return _cosine(unit_sum_BD if kept_BD is None else unit_sum_BD * kept_BD, weights_BN, count_B)

    without_tokens = cosine(weights_BN * ~massive_BN, fewer_B) if some_massive else plain
    without_dimensions, without_both = plain, without_tokens
    if some_outlier:
        kept_BD = ~outlier_BD
        weights_BN = inverse(_norms_without(block, outlier_BD))
        without_dimensions = without_both = cosine(weights_BN, block.count_B, kept_BD)
        if some_massive:
            without_both = cosine(weights_BN * ~massive_BN, fewer_B, kept_BD)
    return ConfoundBatch(torch.stack([plain, without_tokens, without_dimensions, without_both]), massive_BN, outlier_BD)


def _norms_without(block: Block, outlier_BD: Tensor) -> Tensor:
    """‖x_i‖ without outlier dimensions: by taking their few squares away, unless little would be left to trust."""
    dimensions = outlier_BD.any(dim=0).nonzero().flatten()
    few_BNK = block.values_BND[..., dimensions] * outlier_BD[:, None, dimensions]
    whole_BN = block.norms_BN.square()
    left_BN = whole_BN - few_BNK.square().sum(dim=-1)
    if not bool(((left_BN >= TRUSTED_SHARE * whole_BN) | (whole_BN == 0)).all()):
        cut_BND = torch.mul(block.values_BND, ~outlier_BD.unsqueeze(1), out=block.room_BND)
        return block.at_real(euclidean_norm(cut_BND))
    return block.at_real(left_BN.clamp_min(0.0).sqrt())


def join_confounds(parts: Sequence[ConfoundBatch]) -> ConfoundBatch:
    """The confounds of a batch from those of its blocks."""
    if len(parts) == 1:
        return parts[0]
    return ConfoundBatch(
        torch.cat([part.cosines_CB for part in parts], dim=1),
        torch.cat([part.massive_BN for part in parts]),
        torch.cat([part.outlier_BD for part in parts]),
    )


def _massive(block: Block, sums: Sums) -> Tensor:
    norms = sums.norms_BN
    known = norms if block.mask_BN is None else norms.masked_fill(~block.mask_BN, torch.nan)
    median_B1: Tensor = torch.nanmedian(known, dim=1, keepdim=True).values
    return (norms >= MASSIVE_TOKEN_RATIO * median_B1) & (norms > 0)


def _outliers(sums: Sums) -> Tensor:
    size_BD, _ = sums.absolute_sums
    median_B1: Tensor = torch.median(size_BD, dim=1, keepdim=True).values
    return (size_BD >= OUTLIER_DIMENSION_RATIO * median_B1) & (size_BD > 0)


def _cosine(unit_sum_BD: Tensor, weights_BN: Tensor, count_B: Tensor) -> Tensor:
    """Mean cosine over pairs i ≠ j from Σ w_i x_i, w_i = 1/‖x_i‖ or 0; NaN where fewer than two tokens are left."""
    pairs = count_B * (count_B - 1.0)
    mean = (unit_sum_BD.square().sum(dim=-1) - (weights_BN > 0).sum(dim=1)) / pairs.clamp_min(1.0)
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
        self,
        found: Sequence[ConfoundBatch],
        usable_LB: Tensor,
        position_BN: Tensor,
        ids_BN: Tensor | None,
        first: int = 0,
    ) -> None:
        """Add residual layers of one batch, from the one with index `first` on; all have tensors of one shape.

        Sequences with False in `usable_LB` are left out.
        """
        device, rows = usable_LB.device, slice(first, first + len(found))
        values_LCB = torch.stack([item.cosines_CB.to(device) for item in found]).double()
        counted = usable_LB.unsqueeze(1) & values_LCB.isfinite()
        self.count[rows] += counted.sum(dim=-1)
        self.total[rows] += torch.where(counted, values_LCB, 0.0).sum(dim=-1)
        self.sequences[rows] += usable_LB.sum(dim=-1)
        outlier_LBD = torch.stack([item.outlier_BD.to(device) for item in found]) & usable_LB.unsqueeze(-1)
        massive_LBN = torch.stack([item.massive_BN.to(device) for item in found]) & usable_LB.unsqueeze(-1)
        self.dimensions[rows, : outlier_LBD.shape[2]] += outlier_LBD.sum(dim=1)
        if massive_LBN.any():
            hits = massive_LBN.flatten(1).long()
            _count(self.positions[rows], position_BN, hits)
            if ids_BN is not None and self.ids.shape[1]:
                _count(self.ids[rows], ids_BN, hits)

    def compute(self) -> ConfoundState:
        """The states themselves; torchmetrics has reduced them over ranks by now."""
        return self

    def confound(self, index: int, layer: int, text_of: Callable[[int], str | None]) -> Confound:
        """Read one layer off the sums."""
        means = dict(zip(COSINES, (self.total[index] / self.count[index]).tolist(), strict=True))
        sequences = max(int(self.sequences[index]), 1)
        massive = [MassiveToken(position, share) for position, share in _top(self.positions[index], sequences)]
        named = [(text_of(token), share) for token, share in _top(self.ids[index], sequences)]
        massive += [MassiveToken(None, share, text) for text, share in named if text is not None]
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


def _count(bins_LK: Tensor, index_BN: Tensor, hits: Tensor) -> None:
    """Add hits (layers, sequences·tokens) to the bin that each token's index names; large indices share the last."""
    index = index_BN.flatten().clamp(0, bins_LK.shape[1] - 1).expand_as(hits)
    bins_LK.scatter_add_(1, index, hits)


def _top(counts: Tensor, sequences: int) -> list[tuple[int, float]]:
    """The most frequent entries with their count per sequence."""
    if counts.numel() == 0:
        return []
    values, indices = counts.topk(min(NAMED_MOST, counts.numel()))
    shares = [(int(index), int(value) / sequences) for value, index in zip(values, indices, strict=True)]
    return [(index, share) for index, share in shares if share >= NAMED_SHARE]
