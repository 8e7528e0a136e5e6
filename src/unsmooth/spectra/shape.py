"""How far a matrix is from one whose eigenvalues tell all: symmetry, eigenvectors, numerical range."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.spectra._checks import check_matrix

# Eigenvectors closer to dependent than float64 can tell are those of a defective matrix.
LARGEST_CONDITION = 1.0 / torch.finfo(torch.float64).eps


def asymmetry(h: Tensor) -> float:
    r"""‖H − Hᵀ‖_F / (2‖H‖_F): 0 for a symmetric matrix, 1 for an antisymmetric one; 0 for a zero matrix.

    P1 (arXiv 2401.04301) looks at the asymmetry of value-output products over training.

    Example:
        >>> asymmetry(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        1.0
        >>> round(asymmetry(torch.tensor([[0.0, 1.0], [0.0, 0.0]])), 4)  # √2 / 2
        0.7071
    """
    matrix = check_matrix(h)
    size = float(matrix.norm())
    return float((matrix - matrix.mT).norm()) / (2.0 * size) if size > 0.0 else 0.0


def eigenvector_condition(h: Tensor) -> float:
    """2-norm condition number of H's eigenvectors, each of length one; infinite for a defective matrix.

    1 for a normal matrix. Large where eigenvalues say little about the first layers: the larger, the longer
    modes that must decay may grow first.

    Example:
        >>> round(eigenvector_condition(torch.tensor([[2.0, 1.0], [1.0, 2.0]])), 4)
        1.0
        >>> eigenvector_condition(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
        inf
    """
    _, vectors = torch.linalg.eig(check_matrix(h))
    return float(condition_of(vectors))


def condition_of(vectors: Tensor) -> Tensor:
    """Largest over smallest singular value of the columns scaled to length one; infinite where it is beyond float64."""
    lengths = vectors.norm(dim=-2, keepdim=True)
    values = torch.linalg.svdvals(vectors / lengths.clamp_min(torch.finfo(torch.float64).tiny))
    found = values[..., 0] / values[..., -1]
    return torch.where(found < LARGEST_CONDITION, found, torch.inf)


def numerical_range(h: Tensor) -> tuple[float, float]:
    r"""Ends of the real part of H's numerical range: extreme eigenvalues of (H + Hᵀ)/2.

    xᵀHx / xᵀx lies between them for every real x, so the right end bounds what one layer can add along a token,
    whatever the eigenvalues say of many layers.

    Example:
        >>> numerical_range(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))  # eigenvalues 0 and 0
        (-1.0, 1.0)
    """
    matrix = check_matrix(h)
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2.0)
    return float(values[0]), float(values[-1])
