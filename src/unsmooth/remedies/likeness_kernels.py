"""The GPU kernels of `mean_by_likeness`: a program has a whole sequence, all its tokens and some channels at a time.

With e_ij = exp((cos_ij − 1)/T), which no 1/T makes large, and Z_i its sums, S_ij is e_ij/Z_i. Of a gradient g of the
means y, with dl_ij = S_ij (g_i·x_j − g_i·y_i), where g_i·y_i is Σ_j S_ij g_i·x_j, token i has the gradient

    as a value  Σ_j S_ji g_j
    as a query and a key  (Σ_j (dl_ij + dl_ji) x̂_j − x̂_i Σ_j (dl_ij + dl_ji) cos_ij) / (T |x_i|)

All maps of a sequence are in one program's registers, so that nothing but the tokens at length one and their lengths is
kept for the way back; e is symmetric, so that S_ji is e_ij/Z_j. Products are rounded to half precision, sums are in
float32. Imported only where there is a GPU, since Triton comes with its torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from unsmooth.remedies.token_kernels import load_tokens, store_tokens, tokens_from, with_rows
from unsmooth.remedies.triton_here import on_its_device

# Of torch's normalize.
_EPS = tl.constexpr(1e-12)


class Sizes(NamedTuple):
    """Channels taken at a time, the warps of a program that has more than 64 tokens, and loads under way at once."""

    channels: int
    warps: int
    stages: int


SIZES = Sizes(channels=64, warps=8, stages=1)


@triton.jit
def _over(length):
    """One over the length of a token; a token of no length is at length one nothing."""
    return tl.where(length > _EPS, 1.0 / tl.maximum(length, _EPS), 0.0)


@triton.jit
def _likeness(cosines, seen, sharpness):
    """e; nothing of tokens that are not there."""
    return tl.where(seen[None, :], tl.exp((cosines - 1.0) * sharpness), 0.0)


@triton.jit
def _tokens_of(first, channels, tokens, TOKENS: tl.constexpr, CHANNELS: tl.constexpr):
    """All tokens, channels from `first` on, and where there are such tokens of such channels."""
    channel = first + tl.arange(0, CHANNELS)
    token, here = tokens_from(0, tokens, channel < channels, TOKENS)
    return token, channel, here


@triton.jit
def _forward_kernel(
    x, mean, units, lengths, x_at, mean_at, tokens, channels, sharpness, TOKENS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    half = mean.dtype.element_ty
    squares = tl.zeros([TOKENS], tl.float32)
    products = tl.zeros([TOKENS, TOKENS], tl.float32)
    for first in range(0, channels, CHANNELS):
        token, channel, here = _tokens_of(first, channels, tokens, TOKENS, CHANNELS)
        tile = load_tokens(x, x_at, sequence, token, channel, here)
        squares += tl.sum(tile * tile, 1)
        products = tl.dot(tile.to(half), tl.trans(tile.to(half)), products)
    length = tl.sqrt(squares)
    token = tl.arange(0, TOKENS)
    tl.store(lengths + sequence * tokens + token, length, token < tokens)
    over = _over(length)
    e = _likeness(products * over[:, None] * over[None, :], token < tokens, sharpness)
    share, e_half = 1.0 / tl.sum(e, 1), e.to(half)
    for first in range(0, channels, CHANNELS):
        token, channel, here = _tokens_of(first, channels, tokens, TOKENS, CHANNELS)
        tile = load_tokens(x, x_at, sequence, token, channel, here)
        store_tokens(units, mean_at, sequence, token, channel, here, tile * over[:, None])
        store_tokens(mean, mean_at, sequence, token, channel, here, tl.dot(e_half, tile.to(half)) * share[:, None])


@triton.jit
def _backward_kernel(
    grad, units, lengths, of_x, grad_at, units_at, of_x_at, tokens, channels, sharpness,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    half = units.dtype.element_ty
    cosines = tl.zeros([TOKENS, TOKENS], tl.float32)
    of_map = tl.zeros([TOKENS, TOKENS], tl.float32)
    for first in range(0, channels, CHANNELS):
        token, channel, here = _tokens_of(first, channels, tokens, TOKENS, CHANNELS)
        unit = load_tokens(units, units_at, sequence, token, channel, here).to(half)
        g = load_tokens(grad, grad_at, sequence, token, channel, here).to(half)
        cosines = tl.dot(unit, tl.trans(unit), cosines)
        of_map = tl.dot(g, tl.trans(unit), of_map)
    token = tl.arange(0, TOKENS)
    length = tl.load(lengths + sequence * tokens + token, token < tokens, other=0.0)
    e = _likeness(cosines, token < tokens, sharpness)
    share = 1.0 / tl.sum(e, 1)
    of_map = e * share[:, None] * of_map * length[None, :]  # S_ij g_i·x_j
    of_logits = of_map - e * (share * tl.sum(of_map, 1))[:, None]
    turned = of_logits * cosines
    lengthwise = tl.sum(turned, 1) + tl.sum(turned, 0)
    from_values, of_logits = (e * share[None, :]).to(half), of_logits.to(half)
    to_length = sharpness / tl.maximum(length, _EPS)
    for first in range(0, channels, CHANNELS):
        token, channel, here = _tokens_of(first, channels, tokens, TOKENS, CHANNELS)
        unit = load_tokens(units, units_at, sequence, token, channel, here)
        g = load_tokens(grad, grad_at, sequence, token, channel, here).to(half)
        of_unit = tl.dot(of_logits, unit.to(half), -unit * lengthwise[:, None])
        of_unit = tl.dot(tl.trans(of_logits), unit.to(half), of_unit)
        of_tokens = tl.dot(from_values, g, of_unit * to_length[:, None])
        store_tokens(of_x, of_x_at, sequence, token, channel, here, of_tokens)


@on_its_device
def forward(x_BND: Tensor, temperature: float, half: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """What `mean_by_likeness` says, the tokens at length one in half precision, and their lengths (batch, tokens)."""
    x = with_rows(x_BND)
    mean, units = (x.new_empty(x.shape, dtype=half) for _ in range(2))
    lengths = x.new_empty(x.shape[:2], dtype=torch.float32)
    _forward_kernel[(len(x),)](
        x, mean, units, lengths, *(one.stride()[:2] for one in (x, mean)), *x.shape[1:], 1.0 / temperature, **_sizes(x)
    )  # fmt: skip
    return mean, units, lengths


@on_its_device
def backward(grad_BND: Tensor, units_BND: Tensor, lengths_BN: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """The gradient of the tokens, in their precision."""
    grad = with_rows(grad_BND)
    of_x = grad.new_empty(grad.shape, dtype=dtype)
    steps = (one.stride()[:2] for one in (grad, units_BND, of_x))
    _backward_kernel[(len(grad),)](
        grad, units_BND, lengths_BN, of_x, *steps, *grad.shape[1:], 1.0 / temperature, **_sizes(grad)
    )
    return of_x


def _sizes(x_BND: Tensor) -> dict[str, int]:
    tokens = max(16, triton.next_power_of_2(x_BND.shape[1]))
    warps = SIZES.warps if tokens > 64 else 4
    return {"TOKENS": tokens, "CHANNELS": SIZES.channels, "num_warps": warps, "num_stages": SIZES.stages}
