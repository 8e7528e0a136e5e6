"""The two GPU kernels of `blend_whole`: each program has some channels of one sequence and goes over its tokens twice.

Sums are in float32 whatever the tokens are in. Imported only where there is a GPU, since Triton comes with its torch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS, MOST_TOKENS = 64, 128


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    x, of, out, gain, shift, tokens, channels, x_seq, x_tok, of_seq, of_tok,
    GAINS: tl.constexpr, SHIFTS: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    g = tl.load(gain + channel, inside, other=0.0).to(tl.float32) if GAINS else gain
    s = tl.load(shift + channel, inside, other=0.0).to(tl.float32) if SHIFTS else shift
    total = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & inside[None, :]
        at = sequence * of_seq + token[:, None] * of_tok + channel[None, :]
        total += tl.sum(tl.load(of + at, here, other=0.0).to(tl.float32), 0)
    moved = s * (total / tokens)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & inside[None, :]
        value = tl.load(x + sequence * x_seq + token[:, None] * x_tok + channel[None, :], here, other=0.0).to(
            tl.float32
        )
        value = value + g * value + moved[None, :]
        to = (sequence * tokens + token[:, None]) * channels + channel[None, :]
        tl.store(out + to, value.to(out.dtype.element_ty), here)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    grad, x, of, of_x, of_of, sums, gain, shift, tokens, channels, sequences,
    g_seq, g_tok, x_seq, x_tok, of_seq, of_tok,
    GAINS: tl.constexpr, SHIFTS: tl.constexpr, APART: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    g = tl.load(gain + channel, inside, other=0.0).to(tl.float32) if GAINS else gain
    s = tl.load(shift + channel, inside, other=0.0).to(tl.float32) if SHIFTS else shift
    grads = tl.zeros([CHANNELS], tl.float32)
    products = tl.zeros([CHANNELS], tl.float32)
    total = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & inside[None, :]
        d = tl.load(grad + sequence * g_seq + token[:, None] * g_tok + channel[None, :], here, other=0.0).to(tl.float32)
        grads += tl.sum(d, 0)
        if GAINS:
            at = sequence * x_seq + token[:, None] * x_tok + channel[None, :]
            products += tl.sum(d * tl.load(x + at, here, other=0.0).to(tl.float32), 0)
        if SHIFTS:
            at = sequence * of_seq + token[:, None] * of_tok + channel[None, :]
            total += tl.sum(tl.load(of + at, here, other=0.0).to(tl.float32), 0)
    through_mean = s * (grads / tokens)
    if GAINS:
        tl.store(sums + sequence * channels + channel, products, inside)
    if SHIFTS:
        tl.store(sums + (sequences + sequence) * channels + channel, grads * (total / tokens), inside)
    if APART:
        tl.store(of_of + sequence * channels + channel, through_mean.to(of_of.dtype.element_ty), inside)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & inside[None, :]
        d = tl.load(grad + sequence * g_seq + token[:, None] * g_tok + channel[None, :], here, other=0.0).to(tl.float32)
        d = d + g * d
        if not APART:
            d = d + through_mean[None, :]
        to = (sequence * tokens + token[:, None]) * channels + channel[None, :]
        tl.store(of_x + to, d.to(of_x.dtype.element_ty), here)


def forward(x_BNX: Tensor, of_BNX: Tensor, gain: Tensor | float, shift: Tensor | float) -> Tensor:
    """X + g⊙x + s⊙mean(of)."""
    x_BNX, of_BNX = _with_rows(x_BNX), _with_rows(of_BNX)
    out = torch.empty(x_BNX.shape, dtype=x_BNX.dtype, device=x_BNX.device)
    grid, sizes = _sizes(x_BNX)
    strides = (*x_BNX.stride()[:2], *of_BNX.stride()[:2])
    _forward_kernel[grid](x_BNX, of_BNX, out, gain, shift, *x_BNX.shape[1:], *strides, **_kinds(gain, shift), **sizes)
    return out


def backward(
    grad_BNX: Tensor, x: Tensor | None, of: Tensor | None, gain: Tensor | float, shift: Tensor | float, apart: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of `forward` by x, of, gain and shift. `of` has none of its own where it is x."""
    grad = _with_rows(grad_BNX)
    sequences, tokens, channels = grad.shape
    kinds = _kinds(gain, shift)
    of_x = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    of_of = of_x.new_empty(sequences, 1, channels) if apart else of_x
    learned = kinds["GAINS"] or kinds["SHIFTS"]
    sums = of_x.new_empty(2, sequences, channels, dtype=torch.float32) if learned else of_x
    x = grad if x is None else _with_rows(x)
    of = grad if of is None else _with_rows(of)
    grid, sizes = _sizes(grad)
    _backward_kernel[grid](
        grad, x, of, of_x, of_of, sums, gain, shift, tokens, channels, sequences,
        *grad.stride()[:2], *x.stride()[:2], *of.stride()[:2], **kinds, APART=apart, **sizes,
    )  # fmt: skip
    summed_2X = sums.sum(dim=1) if kinds["GAINS"] and kinds["SHIFTS"] else None
    return (
        of_x,
        of_of.expand(grad.shape) if apart else None,
        _weight_grad(gain, sums, summed_2X, 0),
        _weight_grad(shift, sums, summed_2X, 1),
    )


def _weight_grad(weight: Tensor | float, sums: Tensor, summed: Tensor | None, which: int) -> Tensor | None:
    if not isinstance(weight, Tensor):
        return None
    return (sums[which].sum(dim=0) if summed is None else summed[which]).to(weight.dtype)


def _with_rows(x_BNX: Tensor) -> Tensor:
    return x_BNX if x_BNX.stride(2) == 1 else x_BNX.contiguous()


def _kinds(gain: Tensor | float, shift: Tensor | float) -> dict[str, Any]:
    return {"GAINS": isinstance(gain, Tensor), "SHIFTS": isinstance(shift, Tensor)}


def _sizes(x_BNX: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    sequences, tokens, channels = x_BNX.shape
    return (sequences, triton.cdiv(channels, CHANNELS)), {
        "TOKENS": min(MOST_TOKENS, triton.next_power_of_2(tokens)),
        "CHANNELS": CHANNELS,
    }
