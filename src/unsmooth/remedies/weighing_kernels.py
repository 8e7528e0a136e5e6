"""The two GPU kernels of `weigh`: each program has some channels of one sequence and goes over its tokens.

Sums are in float32 whatever the tokens are in. Imported only where there is a GPU, since Triton comes with its torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unsmooth.remedies.token_kernels import by_channels, in_program, load_tokens, store_tokens, tokens_from, with_rows
from unsmooth.remedies.triton_here import on_its_device

WARPS = 8


@triton.jit
def _load_weights(start, channel, inside, each):
    """By channel, of which so many share one."""
    return tl.load(start + channel // each, inside, other=0.0).to(tl.float32)


@triton.jit
def _forward_kernel(
    x, z, out, a, b, c, x_at, z_at, out_at, tokens, channels, each,
    OTHER: tl.constexpr, MEAN: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence, channel, inside = in_program(tl.program_id(1) * CHANNELS, channels, CHANNELS)
    own = _load_weights(a, channel, inside, each)[None, :]
    other = _load_weights(b, channel, inside, each)[None, :] if OTHER else 0.0
    less = tl.zeros([CHANNELS], tl.float32)
    if MEAN:
        for start in range(0, tokens, TOKENS):
            token, here = tokens_from(start, tokens, inside, TOKENS)
            less += tl.sum(load_tokens(x, x_at, sequence, token, channel, here), 0)
        less = less / tokens * _load_weights(c, channel, inside, each)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        value = own * load_tokens(x, x_at, sequence, token, channel, here)
        if OTHER:
            value += other * load_tokens(z, z_at, sequence, token, channel, here)
        if MEAN:
            value -= less[None, :]
        store_tokens(out, out_at, sequence, token, channel, here, value)


@triton.jit
def _backward_kernel(
    grad, x, z, of_x, of_z, sums, a, b, c, grad_at, x_at, z_at, out_at, tokens, channels, each, sequences,
    OTHER: tl.constexpr, MEAN: tl.constexpr, LEARNED: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence, channel, inside = in_program(tl.program_id(1) * CHANNELS, channels, CHANNELS)
    own = _load_weights(a, channel, inside, each)[None, :]
    other = _load_weights(b, channel, inside, each)[None, :] if OTHER else 0.0
    grads = tl.zeros([CHANNELS], tl.float32)
    total = tl.zeros([CHANNELS], tl.float32)
    by_x = tl.zeros([CHANNELS], tl.float32)
    by_z = tl.zeros([CHANNELS], tl.float32)
    if MEAN or LEARNED:
        for start in range(0, tokens, TOKENS):
            token, here = tokens_from(start, tokens, inside, TOKENS)
            d = load_tokens(grad, grad_at, sequence, token, channel, here)
            grads += tl.sum(d, 0)
            if LEARNED:
                value = load_tokens(x, x_at, sequence, token, channel, here)
                total += tl.sum(value, 0)
                by_x += tl.sum(d * value, 0)
                if OTHER:
                    by_z += tl.sum(d * load_tokens(z, z_at, sequence, token, channel, here), 0)
    if LEARNED:
        row = sums + sequence * channels + channel
        tl.store(row, by_x, inside)
        tl.store(row + sequences * channels, by_z, inside)
        tl.store(row + 2 * sequences * channels, -grads * (total / tokens), inside)
    less = grads
    if MEAN:
        less = grads / tokens * _load_weights(c, channel, inside, each)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        d = load_tokens(grad, grad_at, sequence, token, channel, here)
        if OTHER:
            store_tokens(of_z, out_at, sequence, token, channel, here, other * d)
        d = own * d
        if MEAN:
            d -= less[None, :]
        store_tokens(of_x, out_at, sequence, token, channel, here, d)


@on_its_device
def forward(x_BNWE: Tensor, z: Tensor | None, a: Tensor, b: Tensor | None, c: Tensor | None) -> Tensor:
    """What `weigh` says."""
    x_BNX = with_rows(x_BNWE.flatten(2))
    z_BNX = x_BNX if z is None else with_rows(z.flatten(2))
    out = torch.empty(x_BNX.shape, dtype=x_BNX.dtype, device=x_BNX.device)
    grid, sizes = by_channels(x_BNX)
    steps = (one.stride()[:2] for one in (x_BNX, z_BNX, out))
    _forward_kernel[grid](
        x_BNX, z_BNX, out, *_numbers(a, b, c), *steps, *x_BNX.shape[1:], x_BNWE.shape[3],
        OTHER=z is not None, MEAN=c is not None, **sizes, num_warps=WARPS,
    )  # fmt: skip
    return out.view(x_BNWE.shape)


@on_its_device
def backward(
    grad_BNWE: Tensor, x: Tensor | None, z: Tensor | None, a: Tensor, b: Tensor | None, c: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients of x, z, a, b and c; of the last three only where there is x, which is kept where they are learned."""
    grad = with_rows(grad_BNWE.flatten(2))
    sequences, tokens, channels = grad.shape
    x_BNX = grad if x is None else with_rows(x.flatten(2))
    z_BNX = grad if z is None else with_rows(z.flatten(2))
    of_x = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    of_z = None if b is None else torch.empty_like(of_x)
    sums = None if x is None else of_x.new_empty(3, sequences, *grad_BNWE.shape[2:], dtype=torch.float32)
    grid, sizes = by_channels(grad)
    steps = (one.stride()[:2] for one in (grad, x_BNX, z_BNX, of_x))
    _backward_kernel[grid](
        grad, x_BNX, z_BNX, of_x, of_x if of_z is None else of_z, of_x if sums is None else sums, *_numbers(a, b, c),
        *steps, tokens, channels, grad_BNWE.shape[3], sequences,
        OTHER=b is not None, MEAN=c is not None, LEARNED=x is not None, **sizes, num_warps=WARPS,
    )  # fmt: skip
    shape = grad_BNWE.shape
    of_tokens = of_x.view(shape), None if of_z is None else of_z.view(shape)
    if sums is None:
        return *of_tokens, None, None, None
    summed_3W1 = sums.sum(dim=(1, 3)).unsqueeze(2)
    weights = zip((a, b, c), summed_3W1, strict=True)
    return *of_tokens, *(None if one is None else found.to(one.dtype) for one, found in weights)


def _numbers(a: Tensor, b: Tensor | None, c: Tensor | None) -> list[Tensor]:
    return [(a if one is None else one).contiguous() for one in (a, b, c)]
