"""The fastest way here to products and eigenvalues of many small matrices."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

# Up to this size numpy's loop over a batch costs less than torch's, beyond it torch has the faster library.
SMALL = 32


def eigenvalues_of(matrices: Tensor) -> Tensor:
    """Complex128 eigenvalues (..., n) on the CPU.

    On a GPU a batch of nonsymmetric problems is solved one by one and slowly, so they come over here.
    """
    matrices = matrices.detach().to("cpu", torch.float64)
    if matrices.shape[-1] > SMALL:
        found: Tensor = torch.linalg.eigvals(matrices)
        return found
    return torch.from_numpy(numpy.asarray(numpy.linalg.eigvals(matrices.numpy()), dtype=numpy.complex128))


def matrix_vector(matrices_GMN: Tensor, vectors_GN: Tensor) -> Tensor:
    """One matrix times one vector for each of many (G, M)."""
    if matrices_GMN.device.type != "cpu":
        return torch.bmm(matrices_GMN, vectors_GN.unsqueeze(-1))[..., 0]
    # numpy calls a matrix-vector routine per item, several times faster here than torch's batched matrix product.
    return torch.from_numpy(numpy.matmul(matrices_GMN.numpy(), vectors_GN.numpy()[..., None])[..., 0])
