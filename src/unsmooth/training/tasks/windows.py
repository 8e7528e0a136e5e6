"""Stretches of a long text for each batch: gathered on the device where the text fits there, else read ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.training.data.text import Tokens
from unsmooth.training.order import Order
from unsmooth.training.place import Place
from unsmooth.training.tasks.batches import Feed


class Streams:
    """Row r reads the tokens from r · L on, a segment at a time, with L tokens to each row.

    A step goes through all rows: in one go, or group by group where a micro-batch has fewer. A row always belongs to
    the same process.

    Args:
        tokens: In the text.
        streams: Rows of the whole batch.
        length: Tokens in a segment.
        share: Rows that a process takes at a time.
        place: This process, and where numbers are worked out.

    >>> streams = Streams(21, streams=2, length=3, share=2, place=Place(torch.device("cpu")))
    >>> streams.batches, [streams.take(torch.tensor(batch)).tolist() for batch in range(4)]
    (3, [[0, 10], [3, 13], [6, 16], [0, 10]])
    """

    def __init__(self, tokens: int, streams: int, length: int, share: int, place: Place) -> None:
        self.length, self.together = length, share * place.ranks
        if streams % self.together:
            raise expected(f"a batch that {self.together} rows at a time divide", streams, "another micro_batch")
        self.groups = streams // self.together
        # Each token is asked for the next, so the last one is only a target.
        self.each = (tokens - 1) // streams
        self.segments = self.each // length
        if not self.segments:
            needed = streams * length + 1
            raise expected(
                f"{needed} tokens for {streams} streams of one segment", tokens, "a smaller batch, or --set length=…"
            )
        self.batches = self.segments * self.groups
        self._mine = place.rank * share + torch.arange(share, device=place.device)

    def begin(self, batch: int) -> None:
        """Nothing: every epoch is the same."""

    def segment(self, batch: Tensor) -> Tensor:
        """Which segment of its streams a batch is; 0 where an epoch begins."""
        return batch % self.batches // self.groups

    def rows(self, batch: Tensor) -> Tensor:
        """This process's rows (share,) in a batch."""
        return batch % self.groups * self.together + self._mine

    def own(self) -> Tensor:
        """All rows of this process."""
        groups = torch.arange(self.groups, device=self._mine.device)
        return (groups[:, None] * self.together + self._mine).flatten()

    def take(self, batch: Tensor) -> Tensor:
        """Where the segments of a batch start in the text."""
        return self.rows(batch) * self.each + self.segment(batch) * self.length


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
