"""Stretches of a long text for each batch: gathered on the device where the text fits there, else read ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from unsmooth.training.data.text import Tokens
from unsmooth.training.order import Order
from unsmooth.training.place import Place
from unsmooth.training.tasks.feed import Feed

RESIDENT = 1 << 30
"""Texts of at most so many bytes are held on the device."""


class Starts(Protocol):
    """Where the stretches of each batch start."""

    batches: int

    def begin(self, batch: int) -> None:
        """Get ready for a batch."""

    def take(self, batch: Tensor) -> Tensor:
        """Starts (share,) of this process in batch number `batch` since the start of the run."""


class Shuffled:
    """Every stretch of `length` tokens once an epoch, in a fresh order.

    Args:
        samples: Stretches.
        length: Tokens in each.
        share: Stretches that this process takes at a time.
        seed: Of the order.
        place: This process, and the device on which starts are worked out.
    """

    def __init__(self, samples: int, length: int, share: int, seed: int, place: Place) -> None:
        self.order, self.length = Order(samples, share, seed, place), length
        self.batches = self.order.batches

    def begin(self, batch: int) -> None:
        """Shuffle where an epoch begins."""
        self.order.begin(batch // self.batches)

    def take(self, batch: Tensor) -> Tensor:
        """See `Starts`."""
        return self.order.take(batch % self.batches) * self.length


class Windows(Protocol):
    """Stretches of a text by batch."""

    starts: Starts

    def begin(self, batch: int) -> None:
        """Get ready, on the host, for a batch."""

    def take(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Starts (share,) and ids (share, length) int64."""


class ResidentWindows:
    """The whole text on the device."""

    def __init__(self, tokens: Tokens, starts: Starts, length: int, place: Place) -> None:
        self.starts = starts
        self.tokens = tokens.whole(_dtype(tokens)).to(place.device)
        self._places_N = torch.arange(length, device=place.device)

    def begin(self, batch: int) -> None:
        """See `Windows`."""
        self.starts.begin(batch)

    def take(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """See `Windows`."""
        starts_B = self.starts.take(batch)
        return starts_B, self.tokens[starts_B[:, None] + self._places_N].long()


class StreamedWindows:
    """The text stays on disk; `starts` are worked out on the host."""

    def __init__(self, tokens: Tokens, starts: Starts, length: int, place: Place) -> None:
        self.starts = starts

        def read(batch: int) -> tuple[Tensor, Tensor]:
            starts.begin(batch)
            chosen_B = starts.take(torch.tensor(batch))
            return chosen_B, tokens.windows(chosen_B, length)

        self.feed = Feed(read, place.device)

    def begin(self, batch: int) -> None:
        """See `Windows`."""
        self.feed.bring(batch)

    def take(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """What `begin` brought; `batch` was its number."""
        starts_B, ids_BN = self.feed.tensors
        return starts_B, ids_BN


def open_windows(tokens: Tokens, starts: Callable[[Place], Starts], length: int, place: Place) -> Windows:
    """Windows of `length` tokens, resident where the text is small enough.

    Args:
        tokens: The text.
        starts: Makes the starts for a place: this process, on the device or on the host.
        length: Of a window.
        place: This process.
    """
    if len(tokens) * _dtype(tokens).itemsize <= RESIDENT:
        return ResidentWindows(tokens, starts(place), length, place)
    return StreamedWindows(tokens, starts(replace(place, device=torch.device("cpu"))), length, place)


def _dtype(tokens: Tokens) -> torch.dtype:
    """uint16 cannot be gathered everywhere; such ids are held as int32."""
    return torch.uint8 if tokens.dtype == "uint8" else torch.int32
