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

# In a tile of tokens, which 65 of 192 channels fill half, and the warps that share it.
NUMBERS, WARPS = 32768, 16


@triton.jit
def _load(start, at, sequence, token, channel, here):
    """A tile (tokens, channels) in float32; `at` has the steps from one sequence and one token to the next."""
    return tl.load(start + sequence * at[0] + token[:, None] * at[1] + channel[None, :], here, other=0.0).to(tl.float32)


@triton.jit
def _forward_kernel(
    x, out, x_at, out_at, tokens, channels, scale, eps, TOKENS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    mean = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & (channel < channels)[None, :]
        mean += tl.sum(_load(x, x_at, sequence, token, channel, here), 0)
    mean = mean / tokens
    squares = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & (channel < channels)[None, :]
        away = tl.where(here, _load(x, x_at, sequence, token, channel, here) - mean[None, :], 0.0)
        squares += tl.sum(away * away, 0)
    factor = scale * tl.rsqrt(tl.sum(squares, 0) / tokens + eps)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & (channel < channels)[None, :]
        away = _load(x, x_at, sequence, token, channel, here) - mean[None, :]
        to = out + sequence * out_at[0] + token[:, None] * out_at[1] + channel[None, :]
        tl.store(to, (factor * away).to(out.dtype.element_ty), here)


@triton.jit
def _backward_kernel(
    grad, x, of_x, grad_at, x_at, out_at, tokens, channels, scale, eps, TOKENS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    mean = tl.zeros([CHANNELS], tl.float32)
    mean_grad = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & (channel < channels)[None, :]
        mean += tl.sum(_load(x, x_at, sequence, token, channel, here), 0)
        mean_grad += tl.sum(_load(grad, grad_at, sequence, token, channel, here), 0)
    mean = mean / tokens
    mean_grad = mean_grad / tokens
    squares = tl.zeros([CHANNELS], tl.float32)
    products = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & (channel < channels)[None, :]
        away = tl.where(here, _load(x, x_at, sequence, token, channel, here) - mean[None, :], 0.0)
        squares += tl.sum(away * away, 0)
        products += tl.sum(away * (_load(grad, grad_at, sequence, token, channel, here) - mean_grad[None, :]), 0)
    square = tl.sum(squares, 0) / tokens + eps
    factor = scale * tl.rsqrt(square)
    shared = tl.sum(products, 0) / (tokens * square)
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        here = (token < tokens)[:, None] & (channel < channels)[None, :]
        away = _load(x, x_at, sequence, token, channel, here) - mean[None, :]
        d = _load(grad, grad_at, sequence, token, channel, here) - mean_grad[None, :]
        to = of_x + sequence * out_at[0] + token[:, None] * out_at[1] + channel[None, :]
        tl.store(to, (factor * (d - shared * away)).to(of_x.dtype.element_ty), here)


def forward(x_BND: Tensor, scale: float, eps: float) -> Tensor:
    """What `spread_tokens` says."""
    x, out = _with_rows(x_BND), torch.empty_like(x_BND, memory_format=torch.contiguous_format)
    steps = (one.stride()[:2] for one in (x, out))
    _forward_kernel[(len(x),)](x, out, *steps, *x.shape[1:], scale, eps, **_sizes(x))
    return out


def backward(grad_BND: Tensor, x_BND: Tensor, scale: float, eps: float) -> Tensor:
    """The gradient of the tokens."""
    grad, x = _with_rows(grad_BND), _with_rows(x_BND)
    of_x = torch.empty_like(x_BND, memory_format=torch.contiguous_format)
    steps = (one.stride()[:2] for one in (grad, x, of_x))
    _backward_kernel[(len(x),)](grad, x, of_x, *steps, *x.shape[1:], scale, eps, **_sizes(x))
    return of_x


def _with_rows(x_BND: Tensor) -> Tensor:
    return x_BND if x_BND.stride(2) == 1 else x_BND.contiguous()


def _sizes(x_BND: Tensor) -> dict[str, Any]:
    _, tokens, channels = x_BND.shape
    wide = triton.next_power_of_2(channels)
    most = max(1, NUMBERS // wide)
    return {"TOKENS": min(most, triton.next_power_of_2(tokens)), "CHANNELS": wide, "num_warps": WARPS}
