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

from unsmooth.remedies.token_kernels import with_rows
from unsmooth.remedies.triton_here import on_its_device

ROWS = 32


@triton.jit
def _place(start, at, row, heads, tokens, channel):
    """Where rows lie; `at` has the steps from one sequence, head and token to the next."""
    begin = row // tokens // heads * at[0] + row // tokens % heads * at[1] + row % tokens * at[2]
    return start + begin[:, None] + channel[None, :]


@triton.jit
def _load(x, gain, at, rows, heads, tokens, scale, eps, WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr):
    """The rows and channels of this program, where there are such, rows normed, one over what normed them, gains."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, WIDE)
    here = (row < rows)[:, None] & (channel < WIDTH)[None, :]
    value = tl.load(_place(x, at, row, heads, tokens, channel), here, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 1) / WIDTH + eps)[:, None]
    g = tl.load(gain + channel, channel < WIDTH, other=0.0).to(tl.float32) * scale
    return row, channel, here, value * inverse, inverse, g[None, :]


@triton.jit
def _forward_kernel(
    x, gain, out, x_at, out_at, rows, heads, tokens, scale, eps,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, channel, here, unit, _, g = _load(x, gain, x_at, rows, heads, tokens, scale, eps, WIDTH, WIDE, ROWS)
    tl.store(_place(out, out_at, row, heads, tokens, channel), (unit * g).to(out.dtype.element_ty), here)


@triton.jit
def _backward_kernel(
    grad, x, gain, of_x, of_gain, grad_at, x_at, of_x_at, rows, heads, tokens, scale, eps,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, channel, here, unit, inverse, g = _load(x, gain, x_at, rows, heads, tokens, scale, eps, WIDTH, WIDE, ROWS)
    d = tl.load(_place(grad, grad_at, row, heads, tokens, channel), here, other=0.0).to(tl.float32)
    tl.store(of_gain + tl.program_id(0) * WIDTH + channel, tl.sum(d * unit, 0) * scale, channel < WIDTH)
    d = d * g
    d = (d - unit * (tl.sum(d * unit, 1) / WIDTH)[:, None]) * inverse
    tl.store(_place(of_x, of_x_at, row, heads, tokens, channel), d.to(of_x.dtype.element_ty), here)


@on_its_device
def forward(x_BHNE: Tensor, gain_E: Tensor, scale: float, eps: float) -> Tensor:
    """What `head_norm` says."""
    x, out = with_rows(x_BHNE), torch.empty_like(x_BHNE)
    grid, numbers, sizes = _sizes(x)
    _forward_kernel[grid](x, gain_E, out, x.stride()[:3], out.stride()[:3], *numbers, scale, eps, **sizes)
    return out


@on_its_device
def backward(grad_BHNE: Tensor, x_BHNE: Tensor, gain_E: Tensor, scale: float, eps: float) -> tuple[Tensor, Tensor]:
    """Gradients of tokens and gains."""
    grad, x, of_x = with_rows(grad_BHNE), with_rows(x_BHNE), torch.empty_like(x_BHNE)
    grid, numbers, sizes = _sizes(x)
    of_gain = x.new_empty(grid[0], x.shape[3], dtype=torch.float32)
    steps = (one.stride()[:3] for one in (grad, x, of_x))
    _backward_kernel[grid](grad, x, gain_E, of_x, of_gain, *steps, *numbers, scale, eps, **sizes)
    return of_x, of_gain.sum(dim=0)


def _sizes(x: Tensor) -> tuple[tuple[int], tuple[int, int, int], dict[str, Any]]:
    batch, heads, tokens, width = x.shape
    rows = batch * heads * tokens
    sizes = {"WIDTH": width, "WIDE": triton.next_power_of_2(width), "ROWS": ROWS}
    return (triton.cdiv(rows, ROWS),), (rows, heads, tokens), sizes
