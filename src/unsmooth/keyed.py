"""Random numbers that are functions of what they are for: seed, purpose, sample, position. There is no state.

A generator hands out numbers in the order in which they are asked for, so they change with the batch size, the number
of processes and the moment of a restart. Here each number is a hash of its own name instead (a counter-based generator;
Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the crop of image 17 in epoch 3 is the same on any
rank, in any batch, before and after a resume. It is integer arithmetic on tensors: fit for CUDA graphs.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
# The multipliers of a 32-bit hash with low bias, found by search (C. Wellons, "hash prospector", 2018: lowbias32).
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B
_GOLDEN = 0x9E3779B9


def stream(seed: int, purpose: str) -> int:
    """The start of a stream of its own for every purpose: two purposes never share numbers.

    >>> stream(0, "crop") == stream(0, "crop"), stream(0, "crop") == stream(0, "flip"), stream(0, "a") == stream(1, "a")
    (True, False, False)
    """
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def keys(base: int | Tensor, *parts: Tensor | int) -> Tensor:
    """One 32-bit key for each combination of `parts`, which broadcast against each other.

    Args:
        base: A `stream`, or keys made before.
        parts: Integers that name what the number is for: epoch, sample, layer, pixel ….

    Returns:
        int64 tensor with values from 0 to 2³² − 1.

    >>> keys(stream(0, "flip"), 3, torch.tensor([17, 18]))
    tensor([1654642566, 2911166416])
    >>> keys(stream(0, "flip"), 3, torch.tensor([18]))
    tensor([2911166416])
    """
    # Plain integers stay plain until they meet a tensor: nothing is made on the host that a graph would have to copy.
    state = base & _MASK
    for part in parts:
        state = _mixed(state ^ _mixed((part & _MASK) * _GOLDEN + 1 & _MASK))
    return state if isinstance(state, Tensor) else torch.tensor(state)


def derive(keys_: Tensor, count: int) -> Tensor:
    """`count` further keys for each key, in a new last axis.

    >>> derive(torch.tensor([1, 2]), 3).shape
    torch.Size([2, 3])
    """
    return keys(keys_[..., None], torch.arange(count, device=keys_.device))


def uniform(keys_: Tensor) -> Tensor:
    """float32 in [0, 1), on a grid of 2⁻²⁴.

    >>> bool(((0 <= uniform(keys(7, torch.arange(1000)))) & (uniform(keys(7, torch.arange(1000))) < 1)).all())
    True
    """
    return (keys_ >> 8).to(torch.float32) * 2.0**-24


def integers(keys_: Tensor, below: int) -> Tensor:
    """int64 in [0, below), with a bias of at most below / 2³².

    >>> sorted(set(integers(keys(7, torch.arange(100)), 3).tolist()))
    [0, 1, 2]
    """
    return (keys_ * below) >> 32


def normal(keys_: Tensor) -> Tensor:
    """float32 from the standard normal distribution, by the inverse of its distribution function.

    >>> abs(normal(keys(7, torch.arange(100_000))).std().item() - 1) < 0.01
    True
    """
    centred = (keys_.to(torch.float64) + 0.5) * 2.0**-32  # never 0 or 1, whose normal is infinite
    return (torch.erfinv(2 * centred - 1) * math.sqrt(2)).to(torch.float32)


def _mixed(state: Tensor | int) -> Tensor | int:
    state = (state ^ (state >> 16)) * _FIRST & _MASK
    state = (state ^ (state >> 15)) * _SECOND & _MASK
    return state ^ (state >> 16)
