r"""Weighted sums of tokens: what shaped attention, Value-SkipInit, value residuals and LayerScale all are.

.. math:: y = a \odot x + b \odot z - c \odot \bar x

with a, b and c one number each, one per head or one per channel. Written with plain operations, autograd runs ten to
twenty small kernels per layer, with copies in float32 between them. Where whole sequences are on a GPU, one kernel runs
forward and one backward instead; torch.compile fuses the plain operations by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.remedies.triton_here import HAS_TRITON


def weigh(
    x: Tensor, a: Tensor, z: Tensor | None = None, b: Tensor | None = None, *, less_mean: Tensor | None = None
) -> Tensor:
    """a⊙x + b⊙z − c⊙x̄ with the mean over all tokens, in float32 or better and rounded once to the dtype of `x`.

    Args:
        x: (batch, tokens, ...).
        a: One number, or one per channel of the first dimensions after tokens.
        z: Of the shape of `x`; None for no such term.
        b: As many as `a`.
        less_mean: c, likewise; None for no such term.

    Example:
        >>> x, z = torch.tensor([[[4.0], [2.0]]]), torch.tensor([[[1.0], [5.0]]])
        >>> half = torch.tensor([0.5])
        >>> weigh(x, half, z, 2.0 * half, less_mean=half).flatten().tolist()
        [1.5, 4.5]
    """
    # The last dimension has the channels that share a number.
    x_BNWE = torch.unflatten(x.flatten(2), 2, (a.numel(), -1))
    z_BNWE = None if z is None else torch.unflatten(z.flatten(2), 2, (a.numel(), -1))
    weights = [None if one is None else one.reshape(-1, 1) for one in (a, b, less_mean)]
    if not torch.compiler.is_dynamo_compiling() and _has_kernel(x, z):
        out: Tensor = _Weigh.apply(x_BNWE, z_BNWE, *weights)  # type: ignore[no-untyped-call]
    else:
        out = weighed(x_BNWE, z_BNWE, *weights).to(x.dtype)
    return out.view(x.shape)


def weighed(
    x: Tensor, z: Tensor | None, a: Tensor | None, b: Tensor | None, c: Tensor | None, mean: Tensor | None = None
) -> Tensor:
    """The same by plain operations, not rounded: all that can be broadcast, and another mean than that of `x`.

    >>> x, z, one = torch.tensor([[[4.0], [2.0]]]), torch.tensor([[[1.0], [5.0]]]), torch.ones(1)
    >>> weighed(x, z, one, one, one).flatten().tolist(), weighed(x, z, one, one, one, mean=z).flatten().tolist()
    ([2.0, 4.0], [4.0, 2.0])
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    out = x.to(exact) * _as(a, exact)
    if z is not None:
        out = torch.addcmul(out, z.to(exact), _as(b, exact))
    if c is not None:
        mean = x.mean(dim=1, keepdim=True, dtype=exact) if mean is None else mean.to(exact)
        out = torch.addcmul(out, mean, _as(c, exact), value=-1)
    return out


def _as(weight: Tensor | None, exact: torch.dtype) -> Tensor:
    assert weight is not None, "comes with what it weighs"
    return weight.to(exact)


def _has_kernel(x: Tensor, z: Tensor | None) -> bool:
    same = z is None or (z.shape == x.shape and z.dtype == x.dtype)
    return HAS_TRITON and x.is_cuda and same and x.dtype in (torch.float32, torch.bfloat16, torch.float16)


class _Weigh(torch.autograd.Function):
    """`weigh` of (batch, tokens, weights, channels that share one) by one kernel forward and one backward."""

    @staticmethod
    def forward(x: Tensor, z: Tensor | None, a: Tensor, b: Tensor | None, c: Tensor | None) -> Tensor:
        from unsmooth.remedies.weighing_kernels import forward

        return forward(x, z, a, b, c)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, z, *weights = inputs
        ctx.learned = any(ctx.needs_input_grad[2:])
        ctx.has_z = z is not None
        # With fixed numbers the map is linear and its gradient needs none of the tokens.
        ctx.save_for_backward(*((x, z) if ctx.learned else (None, None)), *weights)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_BNWE: Tensor) -> tuple[Tensor | None, ...]:
        x, z, *weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of these gradients are wanted
            return _plain_backward(grad_BNWE, x, z, *weights)
        from unsmooth.remedies.weighing_kernels import backward

        return backward(grad_BNWE, x, z, *weights)

    @staticmethod
    def jvp(ctx: Any, x_t: Any, z_t: Any, *weights_t: Any) -> Tensor:
        x, z, a, b, c = ctx.saved_tensors
        out = torch.zeros_like(x, dtype=torch.float32)
        mean, mean_t = (None if one is None else one.mean(dim=1, keepdim=True, dtype=out.dtype) for one in (x, x_t))
        terms = ((1.0, a, x_t), (1.0, b, z_t), (-1.0, c, mean_t))
        terms_t = zip((1.0, 1.0, -1.0), weights_t, (x, z, mean), strict=True)
        for sign, weight, tokens in (*terms, *terms_t):
            if weight is not None and tokens is not None:
                out = out + sign * weight * tokens
        return out.to(x.dtype)


def _plain_backward(
    grad: Tensor, x: Tensor | None, z: Tensor | None, a: Tensor, b: Tensor | None, c: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Of weights only where there are tokens, which are kept where weights are learned."""
    total = grad.sum(dim=1, keepdim=True)
    of_x = a * grad if c is None else a * grad - c * total / grad.shape[1]
    of_z = None if b is None else b * grad
    of_a = of_b = of_c = None
    if x is not None:
        of_a = (grad * x).sum(dim=(0, 1, 3)).unsqueeze(1)
        of_b = None if z is None else (grad * z).sum(dim=(0, 1, 3)).unsqueeze(1)
        of_c = None if c is None else -(total * x.mean(dim=1, keepdim=True)).sum(dim=(0, 1, 3)).unsqueeze(1)
    return of_x, of_z, of_a, of_b, of_c
