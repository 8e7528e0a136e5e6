"""The two GPU kernels of `blend_whole`: each program has some channels of one sequence and goes over its tokens twice.

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


@triton.jit
def _forward_kernel(
    x, of, out, gain, shift, x_at, of_at, out_at, tokens, channels,
    GAINS: tl.constexpr, SHIFTS: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence, channel, inside = in_program(tl.program_id(1) * CHANNELS, channels, CHANNELS)
    g = tl.load(gain + channel, inside, other=0.0).to(tl.float32) if GAINS else gain
    s = tl.load(shift + channel, inside, other=0.0).to(tl.float32) if SHIFTS else shift
    total = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        total += tl.sum(load_tokens(of, of_at, sequence, token, channel, here), 0)
    moved = s * (total / tokens)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        value = load_tokens(x, x_at, sequence, token, channel, here)
        store_tokens(out, out_at, sequence, token, channel, here, value + g * value + moved[None, :])


@triton.jit
def _backward_kernel(
    grad, x, of, of_x, of_of, sums, gain, shift, grad_at, x_at, of_at, of_x_at, tokens, channels, sequences,
    GAINS: tl.constexpr, SHIFTS: tl.constexpr, APART: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    sequence, channel, inside = in_program(tl.program_id(1) * CHANNELS, channels, CHANNELS)
    g = tl.load(gain + channel, inside, other=0.0).to(tl.float32) if GAINS else gain
    s = tl.load(shift + channel, inside, other=0.0).to(tl.float32) if SHIFTS else shift
    grads = tl.zeros([CHANNELS], tl.float32)
    products = tl.zeros([CHANNELS], tl.float32)
    total = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        d = load_tokens(grad, grad_at, sequence, token, channel, here)
        grads += tl.sum(d, 0)
        if GAINS:
            products += tl.sum(d * load_tokens(x, x_at, sequence, token, channel, here), 0)
        if SHIFTS:
            total += tl.sum(load_tokens(of, of_at, sequence, token, channel, here), 0)
    through_mean = s * (grads / tokens)
    if GAINS:
        tl.store(sums + sequence * channels + channel, products, inside)
    if SHIFTS:
        tl.store(sums + (sequences + sequence) * channels + channel, grads * (total / tokens), inside)
    if APART:
        tl.store(of_of + sequence * channels + channel, through_mean.to(of_of.dtype.element_ty), inside)
    for start in range(0, tokens, TOKENS):
        token, here = tokens_from(start, tokens, inside, TOKENS)
        d = load_tokens(grad, grad_at, sequence, token, channel, here)
        d = d + g * d
        if not APART:
            d = d + through_mean[None, :]
        store_tokens(of_x, of_x_at, sequence, token, channel, here, d)


@on_its_device
def forward(x_BNX: Tensor, of_BNX: Tensor, gain: Tensor | float, shift: Tensor | float) -> Tensor:
    """X + g⊙x + s⊙mean(of)."""
    x_BNX, of_BNX = with_rows(x_BNX), with_rows(of_BNX)
    out = torch.empty(x_BNX.shape, dtype=x_BNX.dtype, device=x_BNX.device)
    grid, sizes = by_channels(x_BNX)
    steps = (one.stride()[:2] for one in (x_BNX, of_BNX, out))
    _forward_kernel[grid](x_BNX, of_BNX, out, gain, shift, *steps, *x_BNX.shape[1:], **_kinds(gain, shift), **sizes)
    return out


@on_its_device
def backward(
    grad_BNX: Tensor, x: Tensor | None, of: Tensor | None, gain: Tensor | float, shift: Tensor | float, apart: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of `forward` by x, of, gain and shift. `of` has none of its own where it is x."""
    grad = with_rows(grad_BNX)
    sequences, tokens, channels = grad.shape
    kinds = _kinds(gain, shift)
    of_x = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    of_of = of_x.new_empty(sequences, 1, channels) if apart else of_x
    learned = kinds["GAINS"] or kinds["SHIFTS"]
    sums = of_x.new_empty(2, sequences, channels, dtype=torch.float32) if learned else of_x
    x = grad if x is None else with_rows(x)
    of = grad if of is None else with_rows(of)
    grid, sizes = by_channels(grad)
    steps = (one.stride()[:2] for one in (grad, x, of, of_x))
    _backward_kernel[grid](
        grad, x, of, of_x, of_of, sums, gain, shift, *steps, tokens, channels, sequences,
        **kinds, APART=apart, **sizes,
    )  # fmt: skip
    summed_2X = sums.sum(dim=1) if kinds["GAINS"] and kinds["SHIFTS"] else None
    return (
        of_x,
        of_of.expand(grad.shape) if apart else None,
        _weight_grad(gain, sums, summed_2X, 0),
        _weight_grad(shift, sums, summed_2X, 1),
    )


def _weight_grad(weight: Tensor | float, sums: Tensor, summed: Tensor | None, which: int) -> Tensor | None:
    if not isinstance(weight, Tensor):
        return None
    return (sums[which].sum(dim=0) if summed is None else summed[which]).to(weight.dtype)


def _kinds(gain: Tensor | float, shift: Tensor | float) -> dict[str, bool]:
    return {"GAINS": isinstance(gain, Tensor), "SHIFTS": isinstance(shift, Tensor)}
