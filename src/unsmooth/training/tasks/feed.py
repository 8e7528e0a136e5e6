"""Batches that are read on the host while the device is busy with the one before, into tensors that stay."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

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
