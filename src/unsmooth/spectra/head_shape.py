"""Symmetry, eigenvectors and numerical range of every head, without its d×d matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.spectra._checks import check_heads
from unsmooth.spectra.shape import condition_of


@dataclass(frozen=True)
class HeadShape:
    """How far each head's H is from one whose eigenvalues tell all; float64 tensors (heads,).

    Attributes:
        asymmetry: ‖H − Hᵀ‖_F / (2‖H‖_F), 0 for a zero H.
        condition: Condition number of the eigenvectors of H's nonzero part, infinite where it is defective.
        range_low: Smallest eigenvalue of (H + Hᵀ)/2.
        range_high: Largest eigenvalue of (H + Hᵀ)/2.
    """

    asymmetry: Tensor
    condition: Tensor
    range_low: Tensor
    range_high: Tensor


def head_shape(w_v_HDK: Tensor, w_o_HKD: Tensor) -> HeadShape:
    r"""`asymmetry`, `eigenvector_condition` and `numerical_range` of H_h = w_v[h] w_o[h], all heads at once.

    With [w_v, w_oᵀ] = Q [R_v, R_o] the product is H = Q (R_v R_oᵀ) Qᵀ: everything that rotations leave alone can be
    read off the matrix in brackets, of size 2 d_h or less. H maps all else to zero, so zero belongs to the range
    where d > 2 d_h. The eigenvectors are those of the d_h eigenvalues that `head_eigenvalues` gives: w_v y for every
    eigenvector y of w_o w_v.

    Args:
        w_v_HDK: Value weights (heads, d, d_h).
        w_o_HKD: Output weights (heads, d_h, d).

    Returns:
        Float64 tensors (heads,) on the CPU.

    Example:
        >>> w_v = torch.tensor([[[1.0], [0.0], [0.0]]])
        >>> w_o = torch.tensor([[[0.0, 2.0, 0.0]]])
        >>> shape = head_shape(w_v, w_o)  # H has one entry, 2 above the diagonal
        >>> shape.range_low.item(), shape.range_high.item(), round(shape.asymmetry.item(), 4)
        (-1.0, 1.0, 0.7071)
    """
    check_heads(w_v_HDK, w_o_HKD)
    w_v, w_o = w_v_HDK.detach().double().cpu(), w_o_HKD.detach().double().cpu()
    d, d_h = w_v.shape[1:]
    _, triangular = torch.linalg.qr(torch.cat([w_v, w_o.mT], dim=2), mode="r")
    small_v, small_o = triangular[..., :d_h], triangular[..., d_h:]
    core = small_v @ small_o.mT
    size = torch.linalg.matrix_norm(core)
    skew = torch.linalg.matrix_norm(core - core.mT)
    ends = torch.linalg.eigvalsh((core + core.mT) / 2.0)
    # Beyond the span of both weights H is zero, and so is its range.
    outside = d > core.shape[1]
    return HeadShape(
        asymmetry=torch.where(size > 0.0, skew / (2.0 * size.clamp_min(torch.finfo(size.dtype).tiny)), 0.0),
        condition=_condition(w_v, w_o, small_v),
        range_low=ends[:, 0].clamp_max(0.0) if outside else ends[:, 0],
        range_high=ends[:, -1].clamp_min(0.0) if outside else ends[:, -1],
    )


def _condition(w_v: Tensor, w_o: Tensor, small_v: Tensor) -> Tensor:
    """Of H's own eigenvectors: lengths and angles of w_v y are those of R_v y."""
    if w_v.shape[2] > w_v.shape[1]:
        return condition_of(torch.linalg.eig(w_v @ w_o)[1])
    _, vectors = torch.linalg.eig(w_o @ w_v)
    return condition_of(small_v.to(vectors.dtype) @ vectors)
