"""A text as parallel streams, one for each row of the batch, whatever the number of processes and micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.training.place import Place


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
