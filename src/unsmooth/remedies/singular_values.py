r"""A token matrix with other singular values, and gradients that stay finite where singular values meet.

The gradient that autograd has for an SVD divides by :math:`s_i^2 - s_j^2`, although a matrix :math:`U h(S) V^\top` does
not move that fast: with :math:`E = U^\top dX\,V` it moves by

.. math:: U\Big(\frac{h_i - h_j}{s_i - s_j} \circ \frac{E + E^\top}{2}
          + \frac{h_i + h_j}{s_i + s_j} \circ \frac{E - E^\top}{2}\Big) V^\top

and by h/s of what is outside the span of U or V. These are finite, and become slopes of h where two values are one.

Of float32 matrices the singular values are roots of eigenvalues of :math:`X X^\top` or :math:`X^\top X`, whichever is
smaller, in double: squared there, they lose no more than float32 has. That is some times faster than an SVD.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError


def with_singular_values(
    x_BNC: Tensor, change: Callable[[Tensor], Tensor], slopes: Callable[[Tensor], Tensor]
) -> Tensor:
    """Matrices with their singular values changed, in float32 or better.

    Singular values that are zero but for rounding stay zero, as their directions are arbitrary. First derivatives are
    exact, backward and forward; gradients of gradients are refused.

    Args:
        x_BNC: (batch, rows, columns).
        change: New singular values from the old ones (batch, rank), largest first; differentiable.
        slopes: (h(a) − h(b))/(a − b) for all pairs of them (batch, rank, rank), and h'(a) where they are one.

    Example:
        >>> x = torch.tensor([[[0.0, 3.0], [2.0, 0.0]]])
        >>> with_singular_values(x, torch.square, lambda s: s[..., :, None] + s[..., None, :]).tolist()
        [[[0.0, 9.0], [4.0, 0.0]]]
    """
    # In autocast the products below would be in half precision.
    with torch.autocast(x_BNC.device.type, enabled=False):
        x = x_BNC.to(torch.promote_types(x_BNC.dtype, torch.float32))
        with torch.no_grad():
            u, s, vh, real = _decomposed(x.detach())
        # Zero, with the derivative of x: what comes of it has a derivative and no value.
        moved = x - x.detach()
        turned = u.mT @ moved @ vh.mT
        new = torch.where(real, change(s + turned.diagonal(dim1=-2, dim2=-1)), 0.0)
        with torch.no_grad():
            apart, along, ratio = _rates(s, new.detach(), slopes(s), real)
        inside = 0.5 * (apart + along) * turned + 0.5 * (apart - along) * turned.mT
        inside = torch.where(torch.eye(s.shape[-1], dtype=torch.bool, device=s.device), torch.diag_embed(new), inside)
        out: Tensor = u @ inside @ vh
        if x.shape[-2] <= x.shape[-1]:
            out = out + (u * ratio) @ (u.mT @ (moved - (moved @ vh.mT) @ vh))
        else:
            out = out + ((moved - u @ (u.mT @ moved)) @ vh.mT * ratio) @ vh
    if out.requires_grad and not torch.compiler.is_dynamo_compiling():
        out.register_hook(_first_only)  # type: ignore[no-untyped-call]
    return out.to(x_BNC.dtype)


def _decomposed(x_BNC: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An SVD, with zeros for singular values that are rounding, and which of them are not."""
    if x_BNC.dtype == torch.double or x_BNC.device.type == "mps":  # which has no double
        u, s, vh = torch.linalg.svd(x_BNC, full_matrices=False)
        real = _are_real(s, x_BNC)
        return u, s * real, vh, real
    if x_BNC.shape[-2] > x_BNC.shape[-1]:
        v, s, uh, real = _by_squares(x_BNC.mT)
        return uh.mT, s, v.mT, real
    return _by_squares(x_BNC)


def _by_squares(x_BNC: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of matrices with no more rows than columns; no directions among columns for what is rounding."""
    x = x_BNC.double()
    squares, u = torch.linalg.eigh(x @ x.mT)
    s, u = squares.clamp(min=0.0).sqrt().flip(-1), u.flip(-1)
    real = _are_real(s, x_BNC)
    vh = (u.mT @ x) / torch.where(real, s, math.inf).unsqueeze(-1)
    u, s, vh = (one.to(x_BNC.dtype) for one in (u, s * real, vh))
    return u, s, vh, real


def _are_real(s: Tensor, x_BNC: Tensor) -> Tensor:
    """Which singular values are more than rounding of the matrix."""
    return s > torch.finfo(x_BNC.dtype).eps * max(x_BNC.shape[-2:]) * s[..., :1]


def _rates(s: Tensor, new: Tensor, slopes: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two matrices of the formula above, and h/s as a row; zero where both values are zero."""
    one, other = s.unsqueeze(-1), s.unsqueeze(-2)
    both = real.unsqueeze(-1) & real.unsqueeze(-2)
    total = one + other
    along = torch.where(total > 0, (new.unsqueeze(-1) + new.unsqueeze(-2)) / total, 0.0)
    # Where one of the two is zero, h is too, and both rates are h/s of the other.
    apart = torch.where(both, slopes, along)
    ratio = torch.where(real, new / s, 0.0)
    return apart, along, ratio.unsqueeze(-2)


def _first_only(gradient: Tensor) -> None:
    if torch.is_grad_enabled():
        raise UnsmoothError(
            "Expected first gradients only but got create_graph=True, for which a change of singular values has no "
            "formula here. Try training without penalties on gradients, or without this remedy."
        )
