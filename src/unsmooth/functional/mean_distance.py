"""Mean Euclidean distance between tokens: zero exactly when all tokens are one vector."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._pairs import row_slices
from unsmooth.functional._ratios import ratio, root
from unsmooth.functional._tokens import Tokens


@metric(
    definition="mean of ‖x_i − x_j‖ over pairs i ≠ j of one sequence",
    paper="Dovonon et al. 2024 (arXiv 2401.04301), whose input convergence it measures",
    cost="O(n²d), a slice of rows at a time",
    chance_note="none: grows with the scale (about √(2d) for tokens of unit variance)",
    degenerate="single token 0; all-zero 0",
    rises_when_alike=False,
    invariances=("permutation", "rotation", "translation", "reflection"),
)
def mean_distance(x: Tensor | Tokens, mask: Tensor | None = None) -> Tensor:
    r"""Mean Euclidean distance between the tokens of each sequence.

    .. math:: \frac{1}{n(n-1)} \sum_{i \ne j} \lVert x_i - x_j \rVert

    It is zero exactly under what Dovonon et al. 2024 (arXiv 2401.04301) call input convergence: all tokens
    are one vector. Distances come from inner products of the centred tokens in float64.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.

    Returns:
        One value per sequence (batch,). A single token and an all-zero or empty sequence give 0.

    Example:
        >>> mean_distance(torch.tensor([[[0.0, 0.0], [3.0, 4.0], [0.0, 4.0]]]))  # distances 5, 4, 3
        tensor([4.])
    """
    tokens = Tokens.of(x, mask)
    centred_BND = tokens.centred_BND
    squares_BN = centred_BND.square().sum(dim=-1)
    total = squares_BN.new_zeros(squares_BN.shape[0])
    for rows in row_slices(centred_BND):
        later = slice(rows.start, None)
        sums = squares_BN[:, rows].unsqueeze(-1) + squares_BN[:, later].unsqueeze(1)
        squared = torch.baddbmm(sums, centred_BND[:, rows], centred_BND[:, later].mT, alpha=-2.0)
        counted = squared.clamp_min(0.0) * _counts(tokens, rows, later)
        total = total + root(counted).sum(dim=(1, 2))
    pairs = tokens.count_B.double() * (tokens.count_B.double() - 1.0)
    return ratio(2.0 * total, pairs, otherwise=0.0).to(tokens.dtype)


def _counts(tokens: Tokens, rows: slice, later: slice) -> Tensor:
    """True for pairs i < j of real tokens (1 or batch, rows, later tokens): every pair once."""
    index = torch.arange(tokens.values_BND.shape[1], device=tokens.values_BND.device)
    once = (index[rows].unsqueeze(-1) < index[later]).unsqueeze(0)
    real = tokens.mask_BN
    return once if real is None else once & real[:, rows].unsqueeze(-1) & real[:, later].unsqueeze(1)
