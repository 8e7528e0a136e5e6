"""The two GPU kernels of `head_norm`: each program has some rows, a row being one token of one head.

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

ROWS = 32


@triton.jit
def _place(row, heads, tokens, at):
    """Where a row begins; `at` has the steps from one sequence, head and token to the next."""
    return row // tokens // heads * at[0] + row // tokens % heads * at[1] + row % tokens * at[2]


@triton.jit
def _forward_kernel(
    x, gain, out, x_at, out_at, rows, heads, tokens, scale, eps,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, WIDE)
    here = (row < rows)[:, None] & (channel < WIDTH)[None, :]
    g = tl.load(gain + channel, channel < WIDTH, other=0.0).to(tl.float32) * scale
    value = tl.load(x + _place(row, heads, tokens, x_at)[:, None] + channel[None, :], here, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 1) / WIDTH + eps)
    to = out + _place(row, heads, tokens, out_at)[:, None] + channel[None, :]
    tl.store(to, (value * inverse[:, None] * g[None, :]).to(out.dtype.element_ty), here)


@triton.jit
def _backward_kernel(
    grad, x, gain, of_x, of_gain, grad_at, x_at, of_x_at, rows, heads, tokens, scale, eps,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, WIDE)
    here = (row < rows)[:, None] & (channel < WIDTH)[None, :]
    g = tl.load(gain + channel, channel < WIDTH, other=0.0).to(tl.float32) * scale
    value = tl.load(x + _place(row, heads, tokens, x_at)[:, None] + channel[None, :], here, other=0.0).to(tl.float32)
    d = tl.load(grad + _place(row, heads, tokens, grad_at)[:, None] + channel[None, :], here, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 1) / WIDTH + eps)
    unit = value * inverse[:, None]
    tl.store(of_gain + tl.program_id(0) * WIDTH + channel, tl.sum(d * unit, 0) * scale, channel < WIDTH)
    d = d * g[None, :]
    d = (d - unit * (tl.sum(d * unit, 1) / WIDTH)[:, None]) * inverse[:, None]
    tl.store(of_x + _place(row, heads, tokens, of_x_at)[:, None] + channel[None, :], d.to(of_x.dtype.element_ty), here)


def forward(x_BHNE: Tensor, gain_E: Tensor, scale: float, eps: float) -> Tensor:
    """What `head_norm` says."""
    x, out = _with_rows(x_BHNE), torch.empty_like(x_BHNE)
    grid, numbers, sizes = _sizes(x)
    _forward_kernel[grid](x, gain_E, out, x.stride()[:3], out.stride()[:3], *numbers, scale, eps, **sizes)
    return out


def backward(grad_BHNE: Tensor, x_BHNE: Tensor, gain_E: Tensor, scale: float, eps: float) -> tuple[Tensor, Tensor]:
    """Gradients of tokens and gains."""
    grad, x, of_x = _with_rows(grad_BHNE), _with_rows(x_BHNE), torch.empty_like(x_BHNE)
    grid, numbers, sizes = _sizes(x)
    of_gain = x.new_empty(grid[0], x.shape[3], dtype=torch.float32)
    steps = (one.stride()[:3] for one in (grad, x, of_x))
    _backward_kernel[grid](grad, x, gain_E, of_x, of_gain, *steps, *numbers, scale, eps, **sizes)
    return of_x, of_gain.sum(dim=0)


def _with_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _sizes(x: Tensor) -> tuple[tuple[int], tuple[int, int, int], dict[str, Any]]:
    batch, heads, tokens, width = x.shape
    rows = batch * heads * tokens
    sizes = {"WIDTH": width, "WIDE": triton.next_power_of_2(width), "ROWS": ROWS}
    return (triton.cdiv(rows, ROWS),), (rows, heads, tokens), sizes
