"""Sharing out what is evaluated: as many batches for each process, because sharded models are called together."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.training.place import Place


def in_batches(total: int, size: int) -> list[slice]:
    """Slices that cover `total`, each of at most `size`.

    >>> in_batches(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def dealt(total: int, size: int, place: Place) -> list[tuple[slice, float]]:
    """This process's slices of `total`, each of at most `size`, and what each counts: 0 for one that only fills up.

    >>> [dealt(5, 2, Place(torch.device("cpu"), rank, 2)) for rank in (0, 1)]
    [[(slice(0, 2, None), 1.0), (slice(4, 5, None), 1.0)], [(slice(2, 4, None), 1.0), (slice(4, 5, None), 0.0)]]
    """
    slices = in_batches(total, size)
    each = -(-len(slices) // place.ranks)
    mine = range(place.rank, each * place.ranks, place.ranks)
    return [(slices[min(one, len(slices) - 1)], float(one < len(slices))) for one in mine]


def spread(total: int, count: int | None) -> Tensor:
    """`count` of `total` places, evenly spread; all of them where there are not so many.

    >>> spread(10, 4), spread(3, None)
    (tensor([0, 2, 5, 7]), tensor([0, 1, 2]))
    """
    count = total if count is None else min(count, total)
    return torch.arange(count) * total // max(1, count)


def in_parts(places: Tensor, size: int = 64) -> list[Tensor]:
    """`places` in parts of at most `size`.

    >>> in_parts(torch.arange(3), 2)
    [tensor([0, 1]), tensor([2])]
    """
    return [places[part] for part in in_batches(len(places), size)]
