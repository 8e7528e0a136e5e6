"""The two GPU kernels of `mean_by_likeness`: each program has some tokens of a sequence and goes over all of them.

With e_ij = exp((cos_ij − 1)/T), which no 1/T makes large, and Z_i its sums, S_ij is e_ij/Z_i; e is symmetric, so that
S_ji is e_ij/Z_j. The gradient of token i is therefore made of what its own program can see:

    as a value  Σ_j S_ji g_j
    as a query and a key  Σ_j (dl_ij + dl_ji) x̂_j / T with dl_ij = S_ij (g_i·x_j − g_i·y_i), turned back by the length

Tokens are multiplied as they are and lengths divided away afterwards, so that a token is in registers once. Products
are rounded to half precision, sums are in float32. Imported only where there is a GPU, since Triton comes with its
torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unsmooth.remedies.token_kernels import Tiles, in_program, load_tokens, store_tokens, tokens_from, with_rows
from unsmooth.remedies.triton_here import on_its_device

TILES = Tiles(rows=16, across=32, warps=8)
# Of torch's normalize.
_EPS = tl.constexpr(1e-12)


@triton.jit
def _length(tile):
    """Of each token."""
    return tl.sqrt(tl.sum(tile * tile, 1))


@triton.jit
def _over(length):
    """One over the length of a token; a token of no length is at length one nothing."""
    return tl.where(length > _EPS, 1.0 / tl.maximum(length, _EPS), 0.0)


@triton.jit
def _likeness(left, right, over_left, over_right, seen, sharpness):
    """e; nothing of tokens that are not there."""
    cosines = tl.dot(left, tl.trans(right)) * over_left[:, None] * over_right[None, :]
    return tl.where(seen[None, :], tl.exp((cosines - 1.0) * sharpness), 0.0)


@triton.jit
def _forward_kernel(
    x, mean, totals, lengths, x_at, mean_at, tokens, channels, sharpness,
    ROWS: tl.constexpr, ACROSS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    sequence, channel, inside = in_program(0, channels, WIDE)
    half = mean.dtype.element_ty
    row, rows_here = tokens_from(tl.program_id(1) * ROWS, tokens, inside, ROWS)
    first = load_tokens(x, x_at, sequence, row, channel, rows_here)
    length, own = _length(first), first.to(half)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, WIDE], tl.float32)
    for start in range(0, tokens, ACROSS):
        token, here = tokens_from(start, tokens, inside, ACROSS)
        value = load_tokens(x, x_at, sequence, token, channel, here)
        other = value.to(half)
        e = _likeness(own, other, _over(length), _over(_length(value)), token < tokens, sharpness)
        total += tl.sum(e, 1)
        summed = tl.dot(e.to(half), other, summed)
    tl.store(totals + sequence * tokens + row, total, row < tokens)
    tl.store(lengths + sequence * tokens + row, length, row < tokens)
    store_tokens(mean, mean_at, sequence, row, channel, rows_here, summed / total[:, None])


@triton.jit
def _of_tokens(grad, mean, totals, lengths, grad_at, mean_at, sequence, token, tokens, channel, here):
    """Of some tokens the gradients of their means, those along the mean, their shares and one over their lengths."""
    g = load_tokens(grad, grad_at, sequence, token, channel, here)
    along = tl.sum(g * load_tokens(mean, mean_at, sequence, token, channel, here), 1)
    place = sequence * tokens + token
    share = 1.0 / tl.load(totals + place, token < tokens, other=1.0)
    return g.to(mean.dtype.element_ty), along, share, _over(tl.load(lengths + place, token < tokens, other=0.0))


@triton.jit
def _backward_kernel(
    grad, x, mean, totals, lengths, of_x, grad_at, x_at, mean_at, of_x_at, tokens, channels, sharpness,
    ROWS: tl.constexpr, ACROSS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    sequence, channel, inside = in_program(0, channels, WIDE)
    half = mean.dtype.element_ty
    row, rows_here = tokens_from(tl.program_id(1) * ROWS, tokens, inside, ROWS)
    own = load_tokens(x, x_at, sequence, row, channel, rows_here).to(half)
    g, along, share, over = _of_tokens(
        grad, mean, totals, lengths, grad_at, mean_at, sequence, row, tokens, channel, rows_here
    )
    of_unit = tl.zeros([ROWS, WIDE], tl.float32)
    of_value = tl.zeros([ROWS, WIDE], tl.float32)
    for start in range(0, tokens, ACROSS):
        token, here = tokens_from(start, tokens, inside, ACROSS)
        other = load_tokens(x, x_at, sequence, token, channel, here).to(half)
        other_g, other_along, other_share, other_over = _of_tokens(
            grad, mean, totals, lengths, grad_at, mean_at, sequence, token, tokens, channel, here
        )
        e = _likeness(own, other, over, other_over, token < tokens, sharpness)
        of_value = tl.dot((e * other_share[None, :]).to(half), other_g, of_value)
        as_query = (tl.dot(g, tl.trans(other)) - along[:, None]) * share[:, None]
        as_key = (tl.dot(own, tl.trans(other_g)) - other_along[None, :]) * other_share[None, :]
        of_unit = tl.dot((e * (as_query + as_key) * other_over[None, :]).to(half), other, of_unit)
    # Read once more: in registers all the while, it would leave no room for the sums.
    value = load_tokens(x, x_at, sequence, row, channel, rows_here)
    unit = value * over[:, None]
    # What goes along the token changes its length alone.
    across = sharpness * (of_unit - unit * tl.sum(of_unit * unit, 1)[:, None])
    of_x_tile = of_value + across / tl.maximum(_length(value), _EPS)[:, None]
    store_tokens(of_x, of_x_at, sequence, row, channel, rows_here, of_x_tile)


@on_its_device
def forward(x_BND: Tensor, temperature: float, half: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """What `mean_by_likeness` says, Z and the lengths of tokens, both (batch, tokens)."""
    x, mean = with_rows(x_BND), x_BND.new_empty(x_BND.shape, dtype=half)
    totals, lengths = (x.new_empty(x.shape[:2], dtype=torch.float32) for _ in range(2))
    steps = (one.stride()[:2] for one in (x, mean))
    _forward_kernel[_grid(x)](x, mean, totals, lengths, *steps, *x.shape[1:], 1.0 / temperature, **_sizes(x))
    return mean, totals, lengths


@on_its_device
def backward(
    grad_BND: Tensor, x_BND: Tensor, mean_BND: Tensor, totals_BN: Tensor, lengths_BN: Tensor, temperature: float
) -> Tensor:
    """The gradient of the tokens."""
    grad, x, of_x = with_rows(grad_BND), with_rows(x_BND), x_BND.new_empty(x_BND.shape)
    steps = (one.stride()[:2] for one in (grad, x, mean_BND, of_x))
    _backward_kernel[_grid(x)](
        grad, x, mean_BND, totals_BN, lengths_BN, of_x, *steps, *x.shape[1:], 1.0 / temperature, **_sizes(x)
    )  # fmt: skip
    return of_x


def _grid(x_BND: Tensor) -> tuple[int, int]:
    return len(x_BND), triton.cdiv(x_BND.shape[1], TILES.rows)


def _sizes(x_BND: Tensor) -> dict[str, Any]:
    # A product on tensor cores is of 16 or more.
    wide = max(16, triton.next_power_of_2(x_BND.shape[2]))
    return {"ROWS": TILES.rows, "ACROSS": TILES.across, "WIDE": wide, "num_warps": TILES.warps, "num_stages": 1}
