"""The GPU kernels of `mean_by_likeness`: a program has some tokens of a sequence, some channels, and goes over all.

With e_ij = exp((cos_ij − 1)/T), which no 1/T makes large, and Z_i its sums, S_ij is e_ij/Z_i; e is symmetric, so that
S_ji is e_ij/Z_j. The gradient of token i is therefore made of what its own program can see:

    as a value  Σ_j S_ji g_j
    as a query and a key  Σ_j (dl_ij + dl_ji) x̂_j / T with dl_ij = S_ij (g_i·x_j − g_i·y_i), turned back by the length

What of that goes along the token changes its length alone: Σ_j (dl_ij + dl_ji) cos_ij, a number. So programs that have
other channels of the same tokens need nothing of each other; each multiplies out all cosines by itself, which costs
less than to hold tokens in all their width. Products are rounded to half precision, sums are in float32; the rounded
tokens are kept for the way back. Imported only where there is a GPU, since Triton comes with its torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unsmooth.remedies.token_kernels import Tiles, in_program, load_tokens, store_tokens, tokens_from, with_rows
from unsmooth.remedies.triton_here import on_its_device

TILES = Tiles(rows=32, across=32, warps=2)
CHANNELS = 64
# Of torch's normalize.
_EPS = tl.constexpr(1e-12)


@triton.jit
def _over(length):
    """One over the length of a token; a token of no length is at length one nothing."""
    return tl.where(length > _EPS, 1.0 / tl.maximum(length, _EPS), 0.0)


@triton.jit
def _of_tokens(numbers, sequence, token, tokens, other):
    """One number for each of some tokens."""
    return tl.load(numbers + sequence * tokens + token, token < tokens, other=other)


@triton.jit
def _likeness(cosines, seen, sharpness):
    """e; nothing of tokens that are not there."""
    return tl.where(seen[None, :], tl.exp((cosines - 1.0) * sharpness), 0.0)


@triton.jit
def _lengths(x, x_at, sequence, token, tokens, channels, TOKENS: tl.constexpr, CHANNELS: tl.constexpr):
    squares = tl.zeros([TOKENS], tl.float32)
    for first in range(0, channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        here = (token < tokens)[:, None] & (channel < channels)[None, :]
        tile = load_tokens(x, x_at, sequence, token, channel, here)
        squares += tl.sum(tile * tile, 1)
    return tl.sqrt(squares)


@triton.jit
def _forward_kernel(
    x, mean, rounded, totals, lengths, x_at, mean_at, tokens, channels, sharpness,
    ROWS: tl.constexpr, ACROSS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence, own_channel, inside = in_program(tl.program_id(2) * CHANNELS, channels, CHANNELS)
    half = mean.dtype.element_ty
    row, rows_here = tokens_from(tl.program_id(1) * ROWS, tokens, inside, ROWS)
    length = _lengths(x, x_at, sequence, row, tokens, channels, ROWS, CHANNELS)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in range(0, tokens, ACROSS):
        token = start + tl.arange(0, ACROSS)
        products = tl.zeros([ROWS, ACROSS], tl.float32)
        squares = tl.zeros([ACROSS], tl.float32)
        for first in range(0, channels, CHANNELS):
            channel = first + tl.arange(0, CHANNELS)
            there = channel < channels
            own = load_tokens(x, x_at, sequence, row, channel, (row < tokens)[:, None] & there[None, :])
            other = load_tokens(x, x_at, sequence, token, channel, (token < tokens)[:, None] & there[None, :])
            squares += tl.sum(other * other, 1)
            products = tl.dot(own.to(half), tl.trans(other.to(half)), products)
        cosines = products * _over(length)[:, None] * _over(tl.sqrt(squares))[None, :]
        e = _likeness(cosines, token < tokens, sharpness)
        total += tl.sum(e, 1)
        value = load_tokens(x, x_at, sequence, token, own_channel, (token < tokens)[:, None] & inside[None, :])
        summed = tl.dot(e.to(half), value.to(half), summed)
    if tl.program_id(2) == 0:
        tl.store(totals + sequence * tokens + row, total, row < tokens)
        tl.store(lengths + sequence * tokens + row, length, row < tokens)
    store_tokens(mean, mean_at, sequence, row, own_channel, rows_here, summed / total[:, None])
    tile = load_tokens(x, x_at, sequence, row, own_channel, rows_here)
    store_tokens(rounded, mean_at, sequence, row, own_channel, rows_here, tile)


@triton.jit
def _along_kernel(
    grad, mean, along, grad_at, mean_at, tokens, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """g_i·y_i, which every program on the way back needs of every token."""
    sequence = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    summed = tl.zeros([ROWS], tl.float32)
    for first in range(0, channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        here = (row < tokens)[:, None] & (channel < channels)[None, :]
        g = load_tokens(grad, grad_at, sequence, row, channel, here)
        summed += tl.sum(g * load_tokens(mean, mean_at, sequence, row, channel, here), 1)
    tl.store(along + sequence * tokens + row, summed, row < tokens)


@triton.jit
def _backward_kernel(
    grad, x, along, totals, lengths, of_x, grad_at, x_at, of_x_at, tokens, channels, sharpness,
    ROWS: tl.constexpr, ACROSS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence, own_channel, inside = in_program(tl.program_id(2) * CHANNELS, channels, CHANNELS)
    half = x.dtype.element_ty
    row, rows_here = tokens_from(tl.program_id(1) * ROWS, tokens, inside, ROWS)
    length = _of_tokens(lengths, sequence, row, tokens, 0.0)
    share, back = 1.0 / _of_tokens(totals, sequence, row, tokens, 1.0), _of_tokens(along, sequence, row, tokens, 0.0)
    of_unit = tl.zeros([ROWS, CHANNELS], tl.float32)
    of_value = tl.zeros([ROWS, CHANNELS], tl.float32)
    lengthwise = tl.zeros([ROWS], tl.float32)
    for start in range(0, tokens, ACROSS):
        token = start + tl.arange(0, ACROSS)
        products = tl.zeros([ROWS, ACROSS], tl.float32)
        as_query = tl.zeros([ROWS, ACROSS], tl.float32)
        as_key = tl.zeros([ROWS, ACROSS], tl.float32)
        for first in range(0, channels, CHANNELS):
            channel = first + tl.arange(0, CHANNELS)
            own_here = (row < tokens)[:, None] & (channel < channels)[None, :]
            other_here = (token < tokens)[:, None] & (channel < channels)[None, :]
            own = load_tokens(x, x_at, sequence, row, channel, own_here).to(half)
            other = tl.trans(load_tokens(x, x_at, sequence, token, channel, other_here).to(half))
            g = load_tokens(grad, grad_at, sequence, row, channel, own_here).to(half)
            other_g = tl.trans(load_tokens(grad, grad_at, sequence, token, channel, other_here).to(half))
            products = tl.dot(own, other, products)
            as_query = tl.dot(g, other, as_query)
            as_key = tl.dot(own, other_g, as_key)
        other_over = _over(_of_tokens(lengths, sequence, token, tokens, 0.0))
        other_share = 1.0 / _of_tokens(totals, sequence, token, tokens, 1.0)
        other_back = _of_tokens(along, sequence, token, tokens, 0.0)
        cosines = products * _over(length)[:, None] * other_over[None, :]
        e = _likeness(cosines, token < tokens, sharpness)
        of_logits = (as_query - back[:, None]) * share[:, None] + (as_key - other_back[None, :]) * other_share[None, :]
        lengthwise += tl.sum(e * of_logits * cosines, 1)
        here = (token < tokens)[:, None] & inside[None, :]
        value = load_tokens(x, x_at, sequence, token, own_channel, here).to(half)
        of_mean = load_tokens(grad, grad_at, sequence, token, own_channel, here).to(half)
        of_unit = tl.dot((e * of_logits * other_over[None, :]).to(half), value, of_unit)
        of_value = tl.dot((e * other_share[None, :]).to(half), of_mean, of_value)
    unit = load_tokens(x, x_at, sequence, row, own_channel, rows_here) * _over(length)[:, None]
    across = sharpness * (of_unit - unit * lengthwise[:, None]) / tl.maximum(length, _EPS)[:, None]
    store_tokens(of_x, of_x_at, sequence, row, own_channel, rows_here, of_value + across)


@on_its_device
def forward(x_BND: Tensor, temperature: float, half: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `mean_by_likeness` says, the tokens in half precision, Z and the lengths of tokens, both (batch, tokens)."""
    x = with_rows(x_BND)
    mean, rounded = (x.new_empty(x.shape, dtype=half) for _ in range(2))
    totals, lengths = (x.new_empty(x.shape[:2], dtype=torch.float32) for _ in range(2))
    steps = (one.stride()[:2] for one in (x, mean))
    _forward_kernel[_grid(x)](x, mean, rounded, totals, lengths, *steps, *x.shape[1:], 1.0 / temperature, **_sizes())
    return mean, rounded, totals, lengths


@on_its_device
def backward(
    grad_BND: Tensor,
    mean_BND: Tensor,
    rounded_BND: Tensor,
    totals_BN: Tensor,
    lengths_BN: Tensor,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the tokens, in their precision."""
    grad, shape, grid = with_rows(grad_BND), mean_BND.shape, _grid(mean_BND)
    along, of_x = torch.empty_like(totals_BN), grad.new_empty(shape, dtype=dtype)
    _along_kernel[grid[:2]](
        grad, mean_BND, along, grad.stride()[:2], mean_BND.stride()[:2], *shape[1:],
        ROWS=TILES.rows, CHANNELS=CHANNELS, num_warps=TILES.warps,
    )  # fmt: skip
    steps = (one.stride()[:2] for one in (grad, rounded_BND, of_x))
    _backward_kernel[grid](
        grad, rounded_BND, along, totals_BN, lengths_BN, of_x, *steps, *shape[1:], 1.0 / temperature, **_sizes()
    )
    return of_x


def _grid(x_BND: Tensor) -> tuple[int, int, int]:
    return len(x_BND), triton.cdiv(x_BND.shape[1], TILES.rows), triton.cdiv(x_BND.shape[2], CHANNELS)


def _sizes() -> dict[str, int]:
    return {
        "ROWS": TILES.rows,
        "ACROSS": TILES.across,
        "CHANNELS": CHANNELS,
        "num_warps": TILES.warps,
        "num_stages": 1,
    }
