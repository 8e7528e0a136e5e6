"""Working on the weights of many layers at once: groups of one shape, and copies in few kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# Layers are stacked to be worked on together; more numbers than these are done in several goes.
_TOGETHER = 2**26


def grouped(found: Sequence[T], alike: Callable[[T], Hashable], numbers: Callable[[T], int]) -> list[list[T]]:
    """What can be worked on together, in order: equal by `alike`, and not too many `numbers` in one group.

    >>> grouped(["a", "bb", "c", "dd"], len, len)
    [['a', 'c'], ['bb', 'dd']]
    """
    groups: dict[Hashable, list[list[T]]] = {}
    for one in found:
        goes = groups.setdefault(alike(one), [[]])
        if goes[-1] and (len(goes[-1]) + 1) * numbers(one) > _TOGETHER:
            goes.append([])
        goes[-1].append(one)
    return [group for goes in groups.values() for group in goes]


@torch.no_grad()
def copy_all(places: list[Tensor], values: list[Tensor]) -> None:
    """Copy tensors into others."""
    if torch.compiler.is_dynamo_compiling():
        for place, value in zip(places, values, strict=True):
            place.copy_(value)
        return
    # By `.data`, as an optimiser of old: values that only take a rounding error away must not make autograd refuse the
    # backward pass of an earlier forward pass that is still to come.
    torch._foreach_copy_(
        [place.data for place in places], [value.to(place.dtype) for place, value in zip(places, values, strict=True)]
    )
