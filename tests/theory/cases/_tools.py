"""What several cases share."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unsmooth.theory.iterate import iterate


def eigenvalues(matrix: Tensor) -> NDArray[np.complex128]:
    """Eigenvalues of a square matrix."""
    return np.asarray(np.linalg.eigvals(matrix.numpy()), dtype=np.complex128)


def layer_matrix(attention: Tensor, h: Tensor) -> Tensor:
    """The layer as a matrix on row-major vectors, column by column: what `iterate` makes of every unit matrix."""
    n, d = attention.shape[-1], h.shape[-1]
    units = torch.eye(n * d, dtype=torch.float64).reshape(n * d, n, d)
    images = [iterate(unit, attention, h, depth=1, normalise=False).x_ND.flatten() for unit in units]
    return torch.stack(images, dim=1)


def up_to_sign(found: Tensor, wanted: Tensor) -> float:
    """Distance of two matrices of norm one, of which only the line counts."""
    found, wanted = found / found.norm(), wanted / wanted.norm()
    return min(float((found - wanted).norm()), float((found + wanted).norm()))


def line_turn(first: Tensor, second: Tensor) -> float:
    """1 − |cosine| of two vectors: 0 on one line."""
    return 1.0 - abs(float(torch.dot(first, second) / (first.norm() * second.norm())))


def real_vectors(matrix: Tensor, value: float) -> tuple[Tensor, Tensor]:
    """Right and left eigenvector at a real simple eigenvalue, scaled to a product of one."""
    values, right = np.linalg.eig(matrix.numpy())
    left = np.linalg.inv(right)
    index = int(np.abs(values - value).argmin())
    return torch.from_numpy(right[:, index].real.copy()), torch.from_numpy(left[index].real.copy())


def off_mean(x_ND: Tensor) -> Tensor:
    """(I − Π)X."""
    return x_ND - x_ND.mean(dim=0)
