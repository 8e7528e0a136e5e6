"""The two GPU kernels of `mean_by_likeness`: each program has some tokens of a sequence and goes over all of them.

With e_ij = exp((cos_ij − 1)/T), which no 1/T makes large, and Z_i its sums, S_ij is e_ij/Z_i; e is symmetric, so that
S_ji is e_ij/Z_j. The gradient of token i is therefore made of what its own program can see:

    as a value  Σ_j S_ji g_j
    as a query and a key  Σ_j (dl_ij + dl_ji) x̂_j / T with dl_ij = S_ij (g_i·x_j − g_i·y_i), turned back by the length

Products are rounded to half precision, sums are in float32. Imported only where there is a GPU, since Triton comes with
its torch.
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

TILES = Tiles(rows=32, across=32, warps=8)
# Of torch's normalize.
_EPS = tl.constexpr(1e-12)


@triton.jit
def _at_length_one(tile):
    """Tokens at length 1, and one over their lengths; one that is zero stays zero."""
    inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(tile * tile, 1)), _EPS)
    return tile * inverse[:, None], inverse


@triton.jit
def _likeness(left, right, seen, sharpness):
    """e; nothing of tokens that are not there."""
    cosines = tl.dot(left, tl.trans(right))
    return tl.where(seen[None, :], tl.exp((cosines - 1.0) * sharpness), 0.0)


@triton.jit
def _forward_kernel(
    x, mean, totals, x_at, mean_at, tokens, channels, sharpness,
    ROWS: tl.constexpr, ACROSS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    sequence, channel, inside = in_program(0, channels, WIDE)
    half = mean.dtype.element_ty
    row, rows_here = tokens_from(tl.program_id(1) * ROWS, tokens, inside, ROWS)
    unit = _at_length_one(load_tokens(x, x_at, sequence, row, channel, rows_here))[0].to(half)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, WIDE], tl.float32)
    for start in range(0, tokens, ACROSS):
        token, here = tokens_from(start, tokens, inside, ACROSS)
        other = load_tokens(x, x_at, sequence, token, channel, here)
        e = _likeness(unit, _at_length_one(other)[0].to(half), token < tokens, sharpness)
        total += tl.sum(e, 1)
        summed = tl.dot(e.to(half), other.to(half), summed)
    tl.store(totals + sequence * tokens + row, total, row < tokens)
    store_tokens(mean, mean_at, sequence, row, channel, rows_here, summed / total[:, None])


@triton.jit
def _backward_kernel(
    grad, x, mean, totals, of_x, grad_at, x_at, mean_at, of_x_at, tokens, channels, sharpness,
    ROWS: tl.constexpr, ACROSS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    sequence, channel, inside = in_program(0, channels, WIDE)
    half = mean.dtype.element_ty
    row, rows_here = tokens_from(tl.program_id(1) * ROWS, tokens, inside, ROWS)
    value = load_tokens(x, x_at, sequence, row, channel, rows_here)
    g = load_tokens(grad, grad_at, sequence, row, channel, rows_here)
    along = tl.sum(g * load_tokens(mean, mean_at, sequence, row, channel, rows_here), 1)
    share = 1.0 / tl.load(totals + sequence * tokens + row, row < tokens, other=1.0)
    own, value_half, g_half = _at_length_one(value)[0].to(half), value.to(half), g.to(half)
    of_unit = tl.zeros([ROWS, WIDE], tl.float32)
    of_value = tl.zeros([ROWS, WIDE], tl.float32)
    for start in range(0, tokens, ACROSS):
        token, here = tokens_from(start, tokens, inside, ACROSS)
        other = load_tokens(x, x_at, sequence, token, channel, here)
        other_g = load_tokens(grad, grad_at, sequence, token, channel, here)
        other_along = tl.sum(other_g * load_tokens(mean, mean_at, sequence, token, channel, here), 1)
        other_share = 1.0 / tl.load(totals + sequence * tokens + token, token < tokens, other=1.0)
        other_unit, other_g_half = _at_length_one(other)[0].to(half), other_g.to(half)
        e = _likeness(own, other_unit, token < tokens, sharpness)
        as_query = (tl.dot(g_half, tl.trans(other.to(half))) - along[:, None]) * share[:, None]
        as_key = (tl.dot(value_half, tl.trans(other_g_half)) - other_along[None, :]) * other_share[None, :]
        of_unit = tl.dot((e * (as_query + as_key)).to(half), other_unit, of_unit)
        of_value = tl.dot((e * other_share[None, :]).to(half), other_g_half, of_value)
    of_unit = of_unit * sharpness
    # Read once more: in registers all the while, it would leave no room for the sums.
    unit, inverse = _at_length_one(load_tokens(x, x_at, sequence, row, channel, rows_here))
    # What goes along the token changes its length alone; one of no length has none to change.
    long = (inverse < 1.0 / _EPS)[:, None]
    across = of_unit - tl.where(long, unit * tl.sum(of_unit * unit, 1)[:, None], 0.0)
    store_tokens(of_x, of_x_at, sequence, row, channel, rows_here, of_value + across * inverse[:, None])


@on_its_device
def forward(x_BND: Tensor, temperature: float, half: torch.dtype) -> tuple[Tensor, Tensor]:
    """What `mean_by_likeness` says, and Z (batch, tokens)."""
    x, mean = with_rows(x_BND), x_BND.new_empty(x_BND.shape, dtype=half)
    totals = x.new_empty(x.shape[:2], dtype=torch.float32)
    steps = (one.stride()[:2] for one in (x, mean))
    _forward_kernel[_grid(x)](x, mean, totals, *steps, *x.shape[1:], 1.0 / temperature, **_sizes(x))
    return mean, totals


@on_its_device
def backward(grad_BND: Tensor, x_BND: Tensor, mean_BND: Tensor, totals_BN: Tensor, temperature: float) -> Tensor:
    """The gradient of the tokens."""
    grad, x, of_x = with_rows(grad_BND), with_rows(x_BND), x_BND.new_empty(x_BND.shape)
    steps = (one.stride()[:2] for one in (grad, x, mean_BND, of_x))
    _backward_kernel[_grid(x)](
        grad, x, mean_BND, totals_BN, of_x, *steps, *x.shape[1:], 1.0 / temperature, **_sizes(x)
    )  # fmt: skip
    return of_x


def _grid(x_BND: Tensor) -> tuple[int, int]:
    return len(x_BND), triton.cdiv(x_BND.shape[1], TILES.rows)


def _sizes(x_BND: Tensor) -> dict[str, Any]:
    # A product on tensor cores is of 16 or more.
    wide = max(16, triton.next_power_of_2(x_BND.shape[2]))
    return {"ROWS": TILES.rows, "ACROSS": TILES.across, "WIDE": wide, "num_warps": TILES.warps, "num_stages": 1}
