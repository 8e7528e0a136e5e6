r"""Tokens without their mean, at a fixed distance from it: PairNorm of whole sequences.

.. math:: y_i = s\,c_i / \sqrt{v + \epsilon}, \qquad c_i = x_i - \bar x, \quad v = \tfrac{1}{n} \sum_j \|c_j\|^2

Written with plain operations, autograd runs some thirty small kernels per layer. Where short sequences are on a GPU,
one kernel runs forward and one backward instead; torch.compile fuses the plain operations by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.remedies.triton_here import HAS_TRITON

# As in the authors' code of PairNorm.
EPS = 1e-6
# One program has a whole sequence: how large it may be, and how wide a token.
_MOST, _MOST_WIDE = 2**18, 8192


def has_kernels(x_BND: Tensor) -> bool:
    """Whether `spread_tokens` is for these tokens; a token that is alone has no distance to keep."""
    return (
        not torch.compiler.is_dynamo_compiling()
        and HAS_TRITON
        and x_BND.is_cuda
        and x_BND.ndim == 3
        and x_BND.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x_BND.shape[1] > 1
        and x_BND.shape[2] <= _MOST_WIDE
        and x_BND.shape[1] * x_BND.shape[2] <= _MOST
    )


def spread_tokens(x_BND: Tensor, scale: float) -> Tensor:
    """By the kernels, in float32 and rounded once to the dtype of `x_BND`; s is `scale`."""
    out: Tensor = _Spread.apply(x_BND, scale)  # type: ignore[no-untyped-call]
    return out


class _Spread(torch.autograd.Function):
    """By one kernel forward and one backward."""

    @staticmethod
    def forward(x_BND: Tensor, scale: float) -> Tensor:
        from unsmooth.remedies.spreading_kernels import forward

        return forward(x_BND, scale, EPS)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x_BND, ctx.scale = inputs
        ctx.save_for_backward(x_BND)
        ctx.save_for_forward(x_BND)

    @staticmethod
    def backward(ctx: Any, grad_BND: Tensor) -> tuple[Tensor, None]:
        (x_BND,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of these gradients are wanted
            return _derivative(x_BND, grad_BND, ctx.scale), None
        from unsmooth.remedies.spreading_kernels import backward

        return backward(grad_BND, x_BND, ctx.scale, EPS), None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, scale_t: None) -> Tensor:
        (x_BND,) = ctx.saved_tensors
        return _derivative(x_BND, x_t, ctx.scale)


def _derivative(x_BND: Tensor, along_BND: Tensor, scale: float) -> Tensor:
    """By plain operations. It is symmetric, so that it takes tangents forward as it takes gradients back."""
    exact = torch.promote_types(x_BND.dtype, torch.float32)
    away, along = (one - one.mean(dim=1, keepdim=True) for one in (x_BND.to(exact), along_BND.to(exact)))
    square = away.square().sum(dim=(1, 2), keepdim=True) / x_BND.shape[1] + EPS
    shared = (away * along).sum(dim=(1, 2), keepdim=True) / (x_BND.shape[1] * square)
    return (scale * square.rsqrt() * (along - shared * away)).to(x_BND.dtype)
