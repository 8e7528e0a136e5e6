"""Which samples a process takes, and bringing them to its device while it works on others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

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


Parts = tuple[Tensor, ...]


class Feed:
    """Reads batch after batch, one ahead.

    Args:
        read: From the number of a batch to its tensors on the host, of the same shapes every time. It is always called
            from one and the same thread, so it may keep a state.
        device: Where they go.

    Example:
        >>> feed = Feed(lambda batch: (torch.full((2,), batch),), torch.device("cpu"))
        >>> feed.bring(3)
        >>> feed.tensors
        (tensor([3, 3]),)
    """

    def __init__(self, read: Callable[[int], Parts], device: torch.device) -> None:
        self._read, self._device = read, device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="unsmooth-feed")
        self._here: int | None = None
        self._ahead: dict[int, Future[Parts]] = {}
        self.tensors: Parts = ()

    def bring(self, batch: int) -> None:
        """Put batch number `batch` into `tensors`, unless it is there."""
        if batch == self._here:
            return
        in_turn = self._here is not None and batch == self._here + 1
        arrived = self._ahead.pop(batch, None) or self._thread.submit(self._fetch, batch)
        parts = arrived.result()
        # Not ahead of the first one: while a graph is captured, no other thread may ask the driver for memory.
        self._ahead = {batch + 1: self._thread.submit(self._fetch, batch + 1)} if in_turn else {}
        if not self.tensors:
            self.tensors = tuple(torch.empty_like(part, device=self._device) for part in parts)
        for place, part in zip(self.tensors, parts, strict=True):
            # torch keeps pinned memory until the copy that reads it is done.
            place.copy_(part, non_blocking=True)
        self._here = batch

    def _fetch(self, batch: int) -> Parts:
        parts = self._read(batch)
        return tuple(part.pin_memory() for part in parts) if self._device.type == "cuda" else parts
