r"""Tokens blended with a mean over tokens: what AttnScale, FeatScale and de-escalation all are.

.. math:: y = x + g \odot x + s \odot m

with a gain g and a shift s per channel. Written with plain operations, autograd runs twenty to thirty small kernels per
layer, and small kernels are what such a remedy costs in a small model. Where whole sequences are on a GPU, one kernel
runs forward and one backward instead; torch.compile fuses the plain operations by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.remedies.triton_here import HAS_TRITON

Weight = Tensor | float


def blend(x: Tensor, mean: Tensor, gain: Weight, shift: Weight) -> Tensor:
    """X + g⊙x + s⊙m, computed in float32 or better and rounded once to the dtype of `x`.

    Args:
        x: (batch, tokens, ...).
        mean: Broadcastable to it.
        gain: g, a number or broadcastable to the last dimensions of `x`.
        shift: s, likewise.

    Example:
        >>> x, mean = torch.tensor([[[4.0], [2.0]]]), torch.tensor([[[3.0]]])
        >>> blend(x, mean, 0.5, -1.5).flatten().tolist()
        [1.5, -1.5]
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    out = torch.addcmul(wide, mean, shift) if isinstance(shift, Tensor) else torch.add(wide, mean, alpha=shift)
    if isinstance(gain, Tensor):
        out = torch.addcmul(out, wide, gain)
    elif gain != 0.0:
        out = torch.add(out, wide, alpha=gain)
    return out.to(x.dtype)


def blend_whole(x: Tensor, of: Tensor, gain: Weight, shift: Weight) -> Tensor:
    """The same with the mean of whole sequences `of` (batch, tokens, ...), of the shape of `x` and often `x` itself.

    Example:
        >>> x = torch.tensor([[[4.0], [2.0]]])
        >>> blend_whole(x, x, 0.0, -1.0).flatten().tolist()  # without its mean
        [1.0, -1.0]
    """
    if torch.compiler.is_dynamo_compiling() or not _has_kernel(x, of):
        mean = of.mean(dim=1, keepdim=True, dtype=torch.promote_types(of.dtype, torch.float32))
        return blend(x, mean, gain, shift)
    flat, flat_of = x.flatten(2), None if of is x else of.flatten(2)
    out: Tensor = _Blend.apply(flat, flat_of, _flat(gain, x), _flat(shift, x))  # type: ignore[no-untyped-call]
    return out.view(x.shape)


def _has_kernel(x: Tensor, of: Tensor) -> bool:
    known = (torch.float32, torch.bfloat16, torch.float16)
    return HAS_TRITON and x.is_cuda and of.shape == x.shape and x.dtype in known and of.dtype == x.dtype


def _flat(weight: Weight, x: Tensor) -> Weight:
    """One number per channel, where it is not one number for all."""
    return weight.expand(x.shape[2:]).flatten().contiguous() if isinstance(weight, Tensor) else weight


class _Blend(torch.autograd.Function):
    """`blend_whole` of (batch, tokens, channels) by one kernel forward and one backward; `of` is None for x itself."""

    @staticmethod
    def forward(x_BNX: Tensor, of_BNX: Tensor | None, gain: Weight, shift: Weight) -> Tensor:
        from unsmooth.remedies.blend_kernels import forward

        return forward(x_BNX, x_BNX if of_BNX is None else of_BNX, gain, shift)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, of, gain, shift = inputs
        ctx.numbers = tuple(None if isinstance(one, Tensor) else one for one in (gain, shift))
        learned = isinstance(gain, Tensor) or isinstance(shift, Tensor)
        ctx.apart = of is not None
        # With fixed numbers the map is linear and its gradient needs none of the tokens.
        tensors = (
            *((x, of) if learned else (None, None)),
            *(w if isinstance(w, Tensor) else None for w in (gain, shift)),
        )
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(x, of, *tensors[2:])

    @staticmethod
    def backward(ctx: Any, grad_BNX: Tensor) -> tuple[Tensor | None, ...]:
        x, of, gain, shift = _Blend._saved(ctx)
        if torch.is_grad_enabled():  # gradients of these gradients are wanted
            return _plain_backward(grad_BNX, x, of, gain, shift, ctx.apart)
        from unsmooth.remedies.blend_kernels import backward

        return backward(grad_BNX, x, x if of is None else of, gain, shift, ctx.apart)

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor | None, of_t: Tensor | None, gain_t: Any, shift_t: Any) -> Tensor:
        x, of, gain, shift = _Blend._saved(ctx)
        source_t = of_t if ctx.apart else x_t
        out = torch.zeros_like(x)
        if x_t is not None:
            out = out + x_t + gain * x_t
        if source_t is not None:
            out = out + shift * source_t.mean(dim=1, keepdim=True)
        if isinstance(gain_t, Tensor):
            out = out + gain_t * x
        if isinstance(shift_t, Tensor):
            out = out + shift_t * (x if of is None else of).mean(dim=1, keepdim=True)
        return out.to(x.dtype)

    @staticmethod
    def _saved(ctx: Any) -> tuple[Any, ...]:
        x, of, gain, shift = ctx.saved_tensors
        gain_number, shift_number = ctx.numbers
        return x, of, gain_number if gain is None else gain, shift_number if shift is None else shift


def _plain_backward(
    grad: Tensor, x: Tensor, of: Tensor | None, gain: Weight, shift: Weight, apart: bool
) -> tuple[Tensor | None, ...]:
    through_mean = (shift * grad.mean(dim=1, keepdim=True)).expand(grad.shape)
    of_x, of_of = grad + gain * grad, through_mean if apart else None
    of_gain = (grad * x).sum(dim=(0, 1)) if isinstance(gain, Tensor) else None
    of_shift = None
    if isinstance(shift, Tensor):
        mean = (x if of is None else of).mean(dim=1, keepdim=True)
        of_shift = (grad.sum(dim=1, keepdim=True) * mean).sum(dim=(0, 1))
    return of_x if apart else of_x + through_mean, of_of, of_gain, of_shift
