"""The sum of all heads' products: what the layer does to the token mean, exactly."""

from __future__ import annotations

import numpy
import torch
from scipy.sparse.linalg import ArpackError, eigs
from torch import Tensor

from unsmooth.spectra._checks import check_heads, check_matrix
from unsmooth.spectra._lapack import eigenvalues_of

# Below this width all eigenvalues cost less than an iteration for one of them.
SMALL = 256
# Where eigenvalues crowd at the rim, as those of a sharpened layer do at 1, more restarts settle nothing.
RESTARTS = 40


def summed_product(w_v_HDK: Tensor, w_o_HKD: Tensor) -> Tensor:
    r"""H = Σ_h w_v[h] w_o[h] of a layer.

    Where every row of every A_h sums to one, Σ_h A_h (1zᵀ) H_h = 1 (zᵀ Σ_h H_h): on tokens that are all equal the
    layer acts as I + H, whatever its attention. For tokens that differ the sum says nothing: see `layer_dominance`.

    Args:
        w_v_HDK: Value weights (heads, d, d_h).
        w_o_HKD: Output weights (heads, d_h, d).

    Returns:
        (d, d) in the weights' type.

    Example:
        >>> w_v = torch.tensor([[[1.0], [0.0]], [[0.0], [1.0]]])
        >>> w_o = torch.tensor([[[2.0, 0.0]], [[0.0, 3.0]]])
        >>> summed_product(w_v, w_o)
        tensor([[2., 0.],
                [0., 3.]])
    """
    check_heads(w_v_HDK, w_o_HKD)
    heads, d, d_h = w_v_HDK.shape
    # One product over heads and head dims at once.
    return w_v_HDK.permute(1, 0, 2).reshape(d, heads * d_h) @ w_o_HKD.reshape(heads * d_h, d)


def eigenvalues(h: Tensor) -> Tensor:
    """All eigenvalues of a square matrix, complex (d,), dense in float64.

    Example:
        >>> eigenvalues(torch.tensor([[0.0, -2.0], [2.0, 0.0]])).imag.sort().values.round(decimals=4)
        tensor([-2.,  2.], dtype=torch.float64)
    """
    return eigenvalues_of(check_matrix(h)).to(h.device)


def extreme_modulus(h: Tensor, shift: float = 1.0) -> tuple[float, complex]:
    r"""Largest \|shift + λ\| over the eigenvalues λ of H, and the λ that has it.

    With shift 1 it is the growth of the fastest mode in which all tokens are equal (P1, arXiv 2401.04301). Large
    matrices go through implicitly restarted Arnoldi, and where that does not converge through all eigenvalues.

    Args:
        h: (d, d).
        shift: What is added to the eigenvalues.

    Returns:
        The modulus and λ; of a conjugate pair the one in the upper half plane.

    Example:
        >>> extreme_modulus(torch.diag(torch.tensor([0.5, -3.0, 1.5])))  # |1.5|, |-2|, |2.5|
        (2.5, (1.5+0j))
    """
    matrix = check_matrix(h)
    found = _arnoldi_extreme(matrix, shift) if matrix.shape[0] > SMALL else None
    if found is None:
        values = eigenvalues_of(matrix)
        found = complex(values[(values + shift).abs().argmax()])
    upper = complex(found.real, abs(found.imag))
    return abs(upper + shift), upper


def _arnoldi_extreme(matrix: Tensor, shift: float) -> complex | None:
    """λ of largest |shift + λ|, or None where the iteration did not settle."""
    shifted = (matrix + shift * torch.eye(matrix.shape[0], dtype=matrix.dtype)).numpy()
    start = numpy.random.default_rng(0).standard_normal(matrix.shape[0])
    try:
        # Two wanted, so that a conjugate pair does not stand half inside.
        found = eigs(shifted, k=2, which="LM", v0=start, ncv=40, tol=1e-10, maxiter=RESTARTS, return_eigenvectors=False)
    except ArpackError:
        return None
    return complex(found[numpy.abs(found).argmax()]) - shift
