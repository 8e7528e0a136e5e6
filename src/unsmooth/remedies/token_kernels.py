"""What the kernels over the tokens of a sequence are made of: tiles (tokens, channels) in float32.

Imported only where there is a GPU, since Triton comes with its torch.
"""

# Functions of Triton have no types.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,assignment"

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

# Of a program that has some channels of one sequence: how many, and how many tokens it takes at a time.
CHANNELS, MOST_TOKENS = 64, 128


class Tiles(NamedTuple):
    """Rows that a program has, how many others it takes at a time, and the warps that share them."""

    rows: int
    across: int
    warps: int


@triton.jit
def in_program(first, channels, CHANNELS: tl.constexpr):
    """The sequence of this program, its channels from `first` on, and which of them there are."""
    channel = first + tl.arange(0, CHANNELS)
    return tl.program_id(0).to(tl.int64), channel, channel < channels


@triton.jit
def tokens_from(start, tokens, inside, TOKENS: tl.constexpr):
    """The next tokens, and where there are such tokens of such channels."""
    token = start + tl.arange(0, TOKENS)
    return token, (token < tokens)[:, None] & inside[None, :]


@triton.jit
def load_tokens(start, at, sequence, token, channel, here):
    """A tile; `at` has the steps from one sequence and one token to the next. Zeros where nothing is."""
    return tl.load(start + sequence * at[0] + token[:, None] * at[1] + channel[None, :], here, other=0.0).to(tl.float32)


@triton.jit
def store_tokens(start, at, sequence, token, channel, here, tile):
    """The other way around, rounded once."""
    to = start + sequence * at[0] + token[:, None] * at[1] + channel[None, :]
    tl.store(to, tile.to(start.dtype.element_ty), here)


def with_rows(x: Tensor) -> Tensor:
    """Channels one after the other, copied only where they are not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def by_channels(x_BNX: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs that have some channels of one sequence each, and their sizes."""
    sequences, tokens, channels = x_BNX.shape
    sizes = {"TOKENS": min(MOST_TOKENS, triton.next_power_of_2(tokens)), "CHANNELS": CHANNELS}
    return (sequences, triton.cdiv(channels, CHANNELS)), sizes
