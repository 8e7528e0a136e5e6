"""Singular values by the quickest way that keeps their digits."""

from __future__ import annotations

import torch
from torch import Tensor

# Squares of singular values are rounded at about 1e-16 of the largest. At 1e-10 of it they still tell a singular value
# to 1e-11 of the largest one.
_TRUSTED = 1e-10


def singular_values(matrix_BND: Tensor, count_B: Tensor) -> Tensor:
    """Singular values of float64 matrices, largest first.

    They are the roots of the eigenvalues of XXᵀ or XᵀX, whichever is smaller, at a third of the cost of a singular
    value decomposition. Matrices of which one is too small to be told by its square are decomposed after all.

    Args:
        matrix_BND: Finite matrices.
        count_B: How many singular values count; those after them belong to rows of zeros.

    >>> singular_values(torch.tensor([[[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]]).double(), torch.tensor([2]))
    tensor([[4., 3.]], dtype=torch.float64)
    """
    # A trace cannot ask how small the smallest is, and a gradient would meet the root of zero.
    if torch.compiler.is_dynamo_compiling() or (matrix_BND.requires_grad and torch.is_grad_enabled()):
        return _decomposed(matrix_BND)
    count, dim = matrix_BND.shape[1:]
    gram_BKK = matrix_BND @ matrix_BND.mT if count < dim else matrix_BND.mT @ matrix_BND
    # A square that overflows becomes a zero on the diagonal, and that an eigenvalue too small to be trusted.
    squares_BK: Tensor = torch.linalg.eigvalsh(gram_BKK.nan_to_num(0.0, 0.0, 0.0)).flip(-1)
    smallest_B1 = squares_BK.gather(1, count_B.long().clamp_min(1).unsqueeze(-1) - 1)
    lost_B = ~(smallest_B1 > _TRUSTED * squares_BK[:, :1]).squeeze(-1)
    singular_BK: Tensor = squares_BK.clamp_min(0.0).sqrt()
    try:
        some_lost = bool(lost_B.any())
    except RuntimeError:  # within torch.vmap nobody can ask
        return _decomposed(matrix_BND)
    if some_lost:
        singular_BK[lost_B] = _decomposed(matrix_BND[lost_B])
    return singular_BK


def _decomposed(matrix_BND: Tensor) -> Tensor:
    found: Tensor = torch.linalg.svdvals(matrix_BND)
    return found
