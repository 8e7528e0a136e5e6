"""The two GPU kernels of `weigh`: each program has some channels of one sequence and goes over its tokens.

Sums are in float32 whatever the tokens are in. Imported only where there is a GPU, since Triton comes with its torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS, MOST_TOKENS, WARPS = 64, 128, 8


@triton.jit
def _load(start, at, sequence, token, channel, here):
    """A tile (tokens, channels) in float32; `at` has the steps from one sequence and one token to the next."""
    return tl.load(start + sequence * at[0] + token[:, None] * at[1] + channel[None, :], here, other=0.0).to(tl.float32)


@triton.jit
def _forward_kernel(
    x, z, out, a, b, c, x_at, z_at, out_at, tokens, channels, each,
    OTHER: tl.constexpr, MEAN: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    own = tl.load(a + channel // each, inside, other=0.0).to(tl.float32)[None, :]
    other = tl.load(b + channel // each, inside, other=0.0).to(tl.float32)[None, :] if OTHER else 0.0
    less = tl.zeros([CHANNELS], tl.float32)
    if MEAN:
        for start in range(0, tokens, TOKENS):
            token = start + tl.arange(0, TOKENS)
            here = (token < tokens)[:, None] & inside[None, :]
            less += tl.sum(_load(x, x_at, sequence, token, channel, here), 0)
        less = less / tokens * tl.load(c + channel // each, inside, other=0.0).to(tl.float32)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & inside[None, :]
        value = own * _load(x, x_at, sequence, token, channel, here)
        if OTHER:
            value += other * _load(z, z_at, sequence, token, channel, here)
        if MEAN:
            value -= less[None, :]
        to = out + sequence * out_at[0] + token[:, None] * out_at[1] + channel[None, :]
        tl.store(to, value.to(out.dtype.element_ty), here)


@triton.jit
def _backward_kernel(
    grad, x, z, of_x, of_z, sums, a, b, c, grad_at, x_at, z_at, out_at, tokens, channels, each, sequences,
    OTHER: tl.constexpr, MEAN: tl.constexpr, LEARNED: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    own = tl.load(a + channel // each, inside, other=0.0).to(tl.float32)[None, :]
    other = tl.load(b + channel // each, inside, other=0.0).to(tl.float32)[None, :] if OTHER else 0.0
    grads = tl.zeros([CHANNELS], tl.float32)
    total = tl.zeros([CHANNELS], tl.float32)
    by_x = tl.zeros([CHANNELS], tl.float32)
    by_z = tl.zeros([CHANNELS], tl.float32)
    if MEAN or LEARNED:
        for start in range(0, tokens, TOKENS):
            token = start + tl.arange(0, TOKENS)
            here = (token < tokens)[:, None] & inside[None, :]
            d = _load(grad, grad_at, sequence, token, channel, here)
            grads += tl.sum(d, 0)
            if LEARNED:
                value = _load(x, x_at, sequence, token, channel, here)
                total += tl.sum(value, 0)
                by_x += tl.sum(d * value, 0)
                if OTHER:
                    by_z += tl.sum(d * _load(z, z_at, sequence, token, channel, here), 0)
    if LEARNED:
        row = sums + sequence * channels + channel
        tl.store(row, by_x, inside)
        tl.store(row + sequences * channels, by_z, inside)
        tl.store(row + 2 * sequences * channels, -grads * (total / tokens), inside)
    less = grads
    if MEAN:
        less = grads / tokens * tl.load(c + channel // each, inside, other=0.0).to(tl.float32)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & inside[None, :]
        d = _load(grad, grad_at, sequence, token, channel, here)
        to = sequence * out_at[0] + token[:, None] * out_at[1] + channel[None, :]
        if OTHER:
            tl.store(of_z + to, (other * d).to(of_z.dtype.element_ty), here)
        d = own * d
        if MEAN:
            d -= less[None, :]
        tl.store(of_x + to, d.to(of_x.dtype.element_ty), here)


def forward(x_BNWE: Tensor, z: Tensor | None, a: Tensor, b: Tensor | None, c: Tensor | None) -> Tensor:
    """What `weigh` says."""
    x_BNX = _rows(x_BNWE)
    z_BNX = x_BNX if z is None else _rows(z)
    out = torch.empty(x_BNX.shape, dtype=x_BNX.dtype, device=x_BNX.device)
    grid, sizes = _sizes(x_BNX)
    steps = (one.stride()[:2] for one in (x_BNX, z_BNX, out))
    _forward_kernel[grid](
        x_BNX, z_BNX, out, *_numbers(a, b, c), *steps, *x_BNX.shape[1:], x_BNWE.shape[3],
        OTHER=z is not None, MEAN=c is not None, **sizes,
    )  # fmt: skip
    return out.view(x_BNWE.shape)


def backward(
    grad_BNWE: Tensor, x: Tensor | None, z: Tensor | None, a: Tensor, b: Tensor | None, c: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients of x, z, a, b and c; of the last three only where there is x, which is kept where they are learned."""
    grad = _rows(grad_BNWE)
    sequences, tokens, channels = grad.shape
    x_BNX = grad if x is None else _rows(x)
    z_BNX = grad if z is None else _rows(z)
    of_x = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    of_z = None if b is None else torch.empty_like(of_x)
    sums = None if x is None else of_x.new_empty(3, sequences, *grad_BNWE.shape[2:], dtype=torch.float32)
    grid, sizes = _sizes(grad)
    steps = (one.stride()[:2] for one in (grad, x_BNX, z_BNX, of_x))
    _backward_kernel[grid](
        grad, x_BNX, z_BNX, of_x, of_x if of_z is None else of_z, of_x if sums is None else sums, *_numbers(a, b, c),
        *steps, tokens, channels, grad_BNWE.shape[3], sequences,
        OTHER=b is not None, MEAN=c is not None, LEARNED=x is not None, **sizes,
    )  # fmt: skip
    shape = grad_BNWE.shape
    of_tokens = of_x.view(shape), None if of_z is None else of_z.view(shape)
    if sums is None:
        return *of_tokens, None, None, None
    summed_3W1 = sums.sum(dim=(1, 3)).unsqueeze(2)
    weights = zip((a, b, c), summed_3W1, strict=True)
    return *of_tokens, *(None if one is None else found.to(one.dtype) for one, found in weights)


def _rows(x_BNWE: Tensor) -> Tensor:
    x_BNX = x_BNWE.flatten(2)
    return x_BNX if x_BNX.stride(2) == 1 else x_BNX.contiguous()


def _numbers(a: Tensor, b: Tensor | None, c: Tensor | None) -> list[Tensor]:
    return [(a if one is None else one).contiguous() for one in (a, b, c)]


def _sizes(x_BNX: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    sequences, tokens, channels = x_BNX.shape
    return (sequences, triton.cdiv(channels, CHANNELS)), {
        "TOKENS": min(MOST_TOKENS, triton.next_power_of_2(tokens)),
        "CHANNELS": CHANNELS,
        "num_warps": WARPS,
    }
