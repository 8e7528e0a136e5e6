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
"""A token is massive when its norm is more than this many times the median norm of its sequence's tokens."""
OUTLIER_DIMENSION_RATIO = 5.0
"""A dimension is an outlier when its mean absolute value over a sequence is more than this many times the median."""
COSINES = ("mean_cosine", "without_massive_tokens", "without_outlier_dimensions", "without_both")
READS = frozenset({"norms_BN", "unit_sum_BD", "absolute_columns_BD"})
"""The sums that show what stands out."""
# Later positions share the last bin.
POSITION_BINS = 1024
# What is rarer than this is not worth a name in a table.
NAMED_SHARE = 0.05
NAMED_MOST = 5


@dataclass(frozen=True)
class ConfoundBatch:
    """One residual layer of one batch; None where nothing stands out, so that all four cosines are the first."""

    cosines_CB: Tensor | None
    massive_BN: Tensor | None
    outlier_BD: Tensor | None

    def on(self, shelf: Shelf) -> ConfoundBatch:
        """The same, kept on a shelf."""
        found = (self.cosines_CB, self.massive_BN, self.outlier_BD)
        return ConfoundBatch(*(None if tensor is None else shelf.keep(tensor) for tensor in found))


def find_confounds(block: Block, sums: Sums) -> ConfoundBatch:
    """Cosines with and without what stands out in each sequence."""
    massive_BN = _stand_out(sums["norms_BN"], MASSIVE_TOKEN_RATIO, block.mask_BN)
    outlier_BD = _stand_out(sums["absolute_columns_BD"], OUTLIER_DIMENSION_RATIO)
    # One question to the device: most layers have nothing that stands out, and looking for more costs several passes.
    some_massive, some_outlier = torch.stack([massive_BN.any(), outlier_BD.any()]).tolist()
    if not (some_massive or some_outlier):
        return ConfoundBatch(None, None, None)
    plain_B, weights_BN = _plain(sums, block.count_B), sums["inverse_norms_BN"]
    fewer_B = block.count_B - massive_BN.sum(dim=1) if some_massive else block.count_B

    def cosine(weights_BN: Tensor, count_B: Tensor, vectors_BND: Tensor) -> Tensor:
        return _cosine(block.weighted_sum(weights_BN, vectors_BND), weights_BN, count_B)

    tokens_B = cosine(weights_BN * ~massive_BN, fewer_B, block.values_BND) if some_massive else plain_B
    dimensions_B, both_B = plain_B, tokens_B
    if some_outlier:
        cut_BND = torch.mul(block.values_BND, ~outlier_BD.unsqueeze(1), out=block.room_BND)
        weights_BN = inverse(block.at_real(euclidean_norm(cut_BND)))
        dimensions_B = both_B = cosine(weights_BN, block.count_B, cut_BND)
        if some_massive:
            both_B = cosine(weights_BN * ~massive_BN, fewer_B, cut_BND)
    return ConfoundBatch(
        torch.stack([plain_B, tokens_B, dimensions_B, both_B]),
        massive_BN if some_massive else None,
        outlier_BD if some_outlier else None,
    )


def join_confounds(parts: Sequence[ConfoundBatch], sums: Sequence[Sums], counts: Sequence[Tensor]) -> ConfoundBatch:
    """The confounds of a batch from those of its blocks, with their sums and numbers of tokens."""
    if len(parts) == 1 or all(part.cosines_CB is None for part in parts):
        return parts[0]
    cosines = [
        _plain(measured, count_B).expand(len(COSINES), -1) if part.cosines_CB is None else part.cosines_CB
        for part, measured, count_B in zip(parts, sums, counts, strict=True)
    ]
    sizes = [len(count_B) for count_B in counts]
    return ConfoundBatch(
        torch.cat(cosines, dim=1),
        _join_masks([part.massive_BN for part in parts], sizes),
        _join_masks([part.outlier_BD for part in parts], sizes),
    )


def _join_masks(masks: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """The masks of all sequences; False where a block has none."""
    known = next((mask for mask in masks if mask is not None), None)
    if known is None:
        return None
    pieces = zip(masks, sizes, strict=True)
    return torch.cat([known.new_zeros(size, known.shape[1]) if mask is None else mask for mask, size in pieces])


def _stand_out(sizes_BK: Tensor, ratio: float, mask_BK: Tensor | None = None) -> Tensor:
    """Which sizes are more than `ratio` times their median."""
    known_BK = sizes_BK if mask_BK is None else sizes_BK.masked_fill(~mask_BK, torch.nan)
    median_B1: Tensor = torch.nanmedian(known_BK, dim=1, keepdim=True).values
    return sizes_BK > ratio * median_B1


def _plain(sums: Sums, count_B: Tensor) -> Tensor:
    return _cosine(sums["unit_sum_BD"], sums["norms_BN"], count_B)


def _cosine(unit_sum_BD: Tensor, weights_BN: Tensor, count_B: Tensor) -> Tensor:
    """Mean cosine over pairs i ≠ j from Σ x̂_i over tokens with a weight above 0; NaN where fewer than two are left."""
    pairs_B = count_B * (count_B - 1.0)
    with_itself_B = (weights_BN > 0).sum(dim=1)
    return (unit_sum_BD.square().sum(dim=-1) - with_itself_B) / pairs_B.masked_fill(pairs_B <= 0, torch.nan)


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

    def update(self, cosines_LCB: Tensor, usable_LB: Tensor, layers: Sequence[int]) -> None:
        """Add the cosines of some residual layers; sequences with False in `usable_LB` are left out."""
        values_LCB = cosines_LCB.double()
        counted = usable_LB.unsqueeze(1) & values_LCB.isfinite()
        self.count[layers] += counted.sum(dim=-1)
        self.total[layers] += torch.where(counted, values_LCB, 0.0).sum(dim=-1)
        self.sequences[layers] += usable_LB.sum(dim=-1)

    def count_dimensions(self, layers: Sequence[int], hits_LD: Tensor) -> None:
        """Add in how many sequences each dimension stood out."""
        self.dimensions[layers, : hits_LD.shape[1]] += hits_LD

    def count_tokens(
        self, layers: Sequence[int], massive_LBN: Tensor, position_BN: Tensor, ids_BN: Tensor | None
    ) -> None:
        """Add tokens that stood out by their positions, and by their ids where there are ids."""
        for layer, hits_BN in zip(layers, massive_LBN.long(), strict=True):
            _count(self.positions[layer], position_BN, hits_BN)
            if ids_BN is not None and self.ids.shape[1]:
                _count(self.ids[layer], ids_BN, hits_BN)

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


def _count(bins_K: Tensor, index_BN: Tensor, hits_BN: Tensor) -> None:
    """Add hits to the bin that each token's index names; large indices share the last."""
    bins_K.scatter_add_(0, index_BN.flatten().clamp(0, bins_K.shape[0] - 1), hits_BN.flatten())


def _top(counts: Tensor, sequences: int) -> list[tuple[int, float]]:
    """The most frequent entries with their count per sequence."""
    if counts.numel() == 0:
        return []
    values, indices = counts.topk(min(NAMED_MOST, counts.numel()))
    shares = [(int(index), int(value) / sequences) for value, index in zip(values, indices, strict=True)]
    return [(index, share) for index, share in shares if share >= NAMED_SHARE]
