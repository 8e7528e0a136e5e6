"""A layer's norm folded into its matrices, at one scale of the stream."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.spectra._checks import check_matrix


def fold_pre_norm(h: Tensor, weight: Tensor | None, centred: bool, scale: float) -> Tensor:
    r"""C_d diag(γ) H / σ: what stands for H where the branch reads a normalised stream.

    A norm before the branch turns a token x into (x C_d / σ) diag(γ) + β with C_d = I − 11ᵀ/d (LayerNorm) or I
    (RMSNorm), so x H becomes x C_d diag(γ) H / σ, and β a push that no spectrum sees. P1 (arXiv 2401.04301) notes
    the part of the sign of γ: negating it negates every eigenvalue.

    Args:
        h: (..., d, m): H itself, or the value weights w_v (heads, d, d_h) to fold the norm into every head.
        weight: γ (d,), None for ones.
        centred: Whether the norm subtracts the feature mean (LayerNorm) or not (RMSNorm).
        scale: σ, what the norm divides a token by; one for all tokens.

    Returns:
        Same shape and type as `h`.

    Example:
        >>> fold_pre_norm(torch.eye(2), torch.tensor([1.0, 3.0]), centred=False, scale=2.0)
        tensor([[0.5000, 0.0000],
                [0.0000, 1.5000]])
        >>> fold_pre_norm(torch.eye(2), None, centred=True, scale=1.0)
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  0.5000]])
    """
    if not isinstance(h, Tensor) or h.ndim < 2 or not h.is_floating_point():
        raise expected("`h` as a matrix of floats (..., d, m)", type(h).__name__, "summed_product(w_v, w_o)")
    gamma = _gamma(weight, h.shape[-2], h, scale)
    folded = gamma.unsqueeze(-1) * h
    if centred:
        folded = folded - folded.mean(dim=-2, keepdim=True)
    return folded / scale


def fold_post_norm(h: Tensor, weight: Tensor | None, centred: bool, scale: float) -> Tensor:
    r"""(I + H) C_d diag(γ) / σ: the whole update of equal tokens where the norm stands after the addition.

    Args:
        h: (d, d), the heads' sum.
        weight: γ (d,), None for ones.
        centred: Whether the norm subtracts the feature mean (LayerNorm) or not (RMSNorm).
        scale: σ, what the norm divides a token by; one for all tokens.

    Returns:
        (d, d) in the type of `h`: its eigenvalues are growth factors as they stand, with no 1 to add.

    Example:
        >>> fold_post_norm(torch.eye(2), None, centred=False, scale=4.0)
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    check_matrix(h)
    return (h + torch.eye(h.shape[0], dtype=h.dtype, device=h.device)) @ norm_factor(h, weight, centred, scale)


def norm_factor(like: Tensor, weight: Tensor | None, centred: bool, scale: float) -> Tensor:
    """C_d diag(γ) / σ (d, d): what a norm does to tokens as rows, without its bias.

    Args:
        like: Any tensor of last dimension d; gives the type and the device.
        weight: γ (d,), None for ones.
        centred: Whether the norm subtracts the feature mean.
        scale: σ.

    Returns:
        (d, d).

    Example:
        >>> norm_factor(torch.zeros(2), torch.tensor([3.0, 5.0]), centred=False, scale=1.0)
        tensor([[3., 0.],
                [0., 5.]])
    """
    d = like.shape[-1]
    gamma = _gamma(weight, d, like, scale)
    matrix = torch.eye(d, dtype=like.dtype, device=like.device)
    if centred:
        matrix = matrix - 1.0 / d
    return matrix * gamma / scale


def _gamma(weight: Tensor | None, d: int, like: Tensor, scale: float) -> Tensor:
    if not scale > 0.0 or scale == float("inf"):
        raise expected("a finite `scale` above 0", scale, "the standard deviation of the stream")
    if weight is None:
        return torch.ones(d, dtype=like.dtype, device=like.device)
    if weight.shape != (d,):
        raise expected(f"a norm weight of shape ({d},)", tuple(weight.shape), "the norm that meets this layer")
    return weight.detach().to(like)
