r"""RMSNorm of each head, with gains that heads share.

.. math:: y = s\,g \odot x / \sqrt{\mathrm{mean}(x^2) + \epsilon}

Torch's own wants tokens in the order of their dimensions and of the gains' dtype, so that heads of half precision are
copied five times around it. On a GPU one kernel runs forward and one backward instead, in whatever order heads lie;
torch.compile fuses the plain operations by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.remedies.mixed_heads import may_fuse

_EPS = 1e-5


def head_norm(x_BHNE: Tensor, gain_E: Tensor, scale: float) -> Tensor:
    """Each token of each head normalised, in float32 or better, and rounded once to the dtype of `x_BHNE`.

    Args:
        x_BHNE: (batch, heads, tokens, head dim).
        gain_E: g.
        scale: s.

    Example:
        >>> head_norm(torch.tensor([3.0, 4.0]).view(1, 1, 1, 2), torch.tensor([1.0, 2.0]), 0.5).flatten()
        tensor([0.4243, 1.1314])
    """
    known = (torch.float32, torch.bfloat16, torch.float16)
    if not torch.compiler.is_dynamo_compiling() and may_fuse() and x_BHNE.is_cuda and x_BHNE.dtype in known:
        out: Tensor = _HeadNorm.apply(x_BHNE, gain_E.contiguous(), scale)  # type: ignore[no-untyped-call]
        return out
    exact = x_BHNE.to(torch.promote_types(x_BHNE.dtype, torch.float32))
    return F.rms_norm(exact, gain_E.shape, gain_E.to(exact.dtype) * scale, _EPS).to(x_BHNE.dtype)


class _HeadNorm(torch.autograd.Function):
    """By the kernels."""

    @staticmethod
    def forward(x_BHNE: Tensor, gain_E: Tensor, scale: float) -> Tensor:
        from unsmooth.remedies.head_norm_kernels import forward

        return forward(x_BHNE, gain_E, scale, _EPS)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.scale = inputs[2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHNE: Tensor) -> tuple[Tensor, Tensor, None]:
        from unsmooth.remedies.head_norm_kernels import backward

        x_BHNE, gain_E = ctx.saved_tensors
        of_x, of_gain = backward(grad_BHNE, x_BHNE, gain_E, ctx.scale, _EPS)
        return of_x, of_gain.to(gain_E.dtype), None
