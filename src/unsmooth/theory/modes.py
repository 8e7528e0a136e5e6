"""The spectrum of one idealised layer with any number of heads, split into the token mean and the rest.

Shape suffixes: H heads, N tokens, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.theory._checks import check_heads, checked_attention, checked_weights

LARGEST = 4096


@dataclass(frozen=True)
class Modes:
    """Eigenvalues of X ↦ X + Σ_h A_h X H_h.

    Attributes:
        mean: The d eigenvalues of I + Σ_h H_h: modes in which all tokens are equal.
        rest: The (n − 1)d others, of the layer modulo such modes.
    """

    mean: NDArray[np.complex128]
    rest: NDArray[np.complex128]

    @property
    def mean_modulus(self) -> float:
        """Growth of the fastest mode in which all tokens are equal."""
        return float(np.abs(self.mean).max())

    @property
    def rest_modulus(self) -> float:
        """Growth of the fastest other mode."""
        return float(np.abs(self.rest).max())

    @property
    def mean_dominates(self) -> bool:
        """Whether tokens become alike in the long run: strictly, so a tie does not count."""
        return self.mean_modulus > self.rest_modulus


def modes(attention: Tensor, h: Tensor) -> Modes:
    r"""Eigenvalues of one layer, exactly, also where heads mix.

    Every A_h maps the vector of ones to itself, so matrices 1zᵀ with equal rows are mapped to such matrices, by
    z ↦ (I + ΣH_h)ᵀz. What is left is the layer on the other n − 1 token directions:

    .. math:: \tilde X \mapsto \tilde X + \sum_h (I - \Pi) A_h \tilde X H_h

    For one head the eigenvalues are 1 + μλ with μ of A and λ of H (P1, arXiv 2401.04301); for several they are not
    products. Dense, of order ((n − 1)d)³.

    Args:
        attention: (n, n) or (heads, n, n).
        h: (d, d) or (heads, d, d).

    Example:
        >>> uniform = torch.full((2, 2), 0.5)
        >>> found = modes(torch.stack([uniform, torch.eye(2)]), torch.tensor([[[0.5]], [[-0.25]]]))
        >>> found.mean.real, found.rest.real  # 1 + 0.5 − 0.25, and 1 + 0·0.5 − 1·0.25
        (array([1.25]), array([0.75]))
    """
    map_HNN, h_HDD = checked_attention(attention), checked_weights(h)
    check_heads(map_HNN, h_HDD)
    n, d = map_HNN.shape[-1], h_HDD.shape[-1]
    if (n - 1) * d > LARGEST:
        raise expected(f"(n − 1)·d of at most {LARGEST}", str((n - 1) * d), "fewer tokens or dimensions")
    basis_NM = _differences(n)
    small_HMM = basis_NM.T @ map_HNN @ basis_NM
    rest = torch.eye((n - 1) * d, dtype=torch.float64)
    for small_MM, h_DD in zip(small_HMM, h_HDD, strict=True):
        rest = rest + torch.kron(small_MM, h_DD.T.contiguous())
    mean = torch.eye(d, dtype=torch.float64) + h_HDD.sum(dim=0)
    return Modes(_eigenvalues(mean), _eigenvalues(rest))


def eigenvalue_distance(found: NDArray[np.complex128], wanted: NDArray[np.complex128]) -> float:
    """Largest distance between two sets of eigenvalues, paired so that the sum of distances is least."""
    cost = np.abs(found[:, None] - wanted[None, :])
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].max()) if len(found) == len(wanted) else float("inf")


def _differences(n: int) -> Tensor:
    """An orthonormal basis (n, n − 1) of the token directions that sum to zero (Helmert's)."""
    basis = torch.zeros(n, n - 1, dtype=torch.float64)
    for column in range(n - 1):
        basis[: column + 1, column] = 1.0
        basis[column + 1, column] = -(column + 1.0)
    return basis / basis.square().sum(dim=0).sqrt()


def _eigenvalues(matrix: Tensor) -> NDArray[np.complex128]:
    return np.asarray(np.linalg.eigvals(matrix.numpy()), dtype=np.complex128)
