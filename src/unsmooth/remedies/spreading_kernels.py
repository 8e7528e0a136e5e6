"""The two GPU kernels of `spread_tokens`: each program has one sequence and goes over its tokens three times.

Sums are in float32. Imported only where there is a GPU, since Triton comes with its torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unsmooth.remedies.token_kernels import in_program, load_tokens, store_tokens, tokens_from, with_rows
from unsmooth.remedies.triton_here import on_its_device

# In a tile of tokens, which 65 of 192 channels fill half, and the warps that share it.
NUMBERS, WARPS = 32768, 16


@triton.jit
def _forward_kernel(
    x, out, x_at, out_at, tokens, channels, scale, eps, TOKENS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    sequence, channel, inside = in_program(0, channels, CHANNELS)
    mean = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        mean += tl.sum(load_tokens(x, x_at, sequence, token, channel, here), 0)
    mean = mean / tokens
    squares = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        away = tl.where(here, load_tokens(x, x_at, sequence, token, channel, here) - mean[None, :], 0.0)
        squares += tl.sum(away * away, 0)
    factor = scale * tl.rsqrt(tl.sum(squares, 0) / tokens + eps)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        away = load_tokens(x, x_at, sequence, token, channel, here) - mean[None, :]
        store_tokens(out, out_at, sequence, token, channel, here, factor * away)


@triton.jit
def _backward_kernel(
    grad, x, of_x, grad_at, x_at, out_at, tokens, channels, scale, eps, TOKENS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    sequence, channel, inside = in_program(0, channels, CHANNELS)
    mean = tl.zeros([CHANNELS], tl.float32)
    mean_grad = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        mean += tl.sum(load_tokens(x, x_at, sequence, token, channel, here), 0)
        mean_grad += tl.sum(load_tokens(grad, grad_at, sequence, token, channel, here), 0)
    mean = mean / tokens
    mean_grad = mean_grad / tokens
    squares = tl.zeros([CHANNELS], tl.float32)
    products = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        away = tl.where(here, load_tokens(x, x_at, sequence, token, channel, here) - mean[None, :], 0.0)
        squares += tl.sum(away * away, 0)
        products += tl.sum(away * (load_tokens(grad, grad_at, sequence, token, channel, here) - mean_grad[None, :]), 0)
    square = tl.sum(squares, 0) / tokens + eps
    factor = scale * tl.rsqrt(square)
    shared = tl.sum(products, 0) / (tokens * square)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        away = load_tokens(x, x_at, sequence, token, channel, here) - mean[None, :]
        d = load_tokens(grad, grad_at, sequence, token, channel, here) - mean_grad[None, :]
        store_tokens(of_x, out_at, sequence, token, channel, here, factor * (d - shared * away))


@on_its_device
def forward(x_BND: Tensor, scale: float, eps: float) -> Tensor:
    """What `spread_tokens` says."""
    x, out = with_rows(x_BND), torch.empty_like(x_BND, memory_format=torch.contiguous_format)
    steps = (one.stride()[:2] for one in (x, out))
    _forward_kernel[(len(x),)](x, out, *steps, *x.shape[1:], scale, eps, **_sizes(x))
    return out


@on_its_device
def backward(grad_BND: Tensor, x_BND: Tensor, scale: float, eps: float) -> Tensor:
    """The gradient of the tokens."""
    grad, x = with_rows(grad_BND), with_rows(x_BND)
    of_x = torch.empty_like(x_BND, memory_format=torch.contiguous_format)
    steps = (one.stride()[:2] for one in (grad, x, of_x))
    _backward_kernel[(len(x),)](grad, x, of_x, *steps, *x.shape[1:], scale, eps, **_sizes(x))
    return of_x


def _sizes(x_BND: Tensor) -> dict[str, Any]:
    _, tokens, channels = x_BND.shape
    wide = triton.next_power_of_2(channels)
    most = max(1, NUMBERS // wide)
    return {"TOKENS": min(most, triton.next_power_of_2(tokens)), "CHANNELS": wide, "num_warps": WARPS}
