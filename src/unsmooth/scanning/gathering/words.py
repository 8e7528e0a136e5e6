"""The same word in many sequences: a fixed-size sample of words, with their vectors at every place.

Which words are kept is decided by a hash of the word, and which of its sequences by a hash of their content. A word
that is among those kept at the end was among them all the time, on every process, so that order, batches and the number
of processes change nothing.

Shape suffixes: B sequences, N tokens, S occurrences, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import BoundMetric, Occurrences
from unsmooth.functional._occurrences import find_occurrences, sorted_by
from unsmooth.keyed import keys, stream
from unsmooth.scanning.gathering.base import Gathering, Seen
from unsmooth.scanning.statistics import Place, Summary, summarise

MOST_OCCURRENCES = 4096
"""Vectors kept per place, of all words together."""
MOST_CONTEXTS = 64
"""Vectors kept per place, of one word."""
_WORD = stream(0, "word")


def kept_occurrences(words_S: Tensor, contexts_S: Tensor) -> Tensor:
    """Which occurrences of words stay, sorted by the hashes of their words and contexts; of equal ones the first.

    Words come in the order of their hashes as long as all they have together is no more than `MOST_OCCURRENCES`.
    """
    hash_S = keys(_WORD, words_S)
    order_S = sorted_by(hash_S, words_S, contexts_S)
    words_S, contexts_S = words_S[order_S], contexts_S[order_S]
    new_word_S = torch.ones_like(words_S, dtype=torch.bool)
    new_word_S[1:] = words_S[1:] != words_S[:-1]
    new_S = new_word_S.clone()
    new_S[1:] |= contexts_S[1:] != contexts_S[:-1]
    order_S, new_word_S = order_S[new_S], new_word_S[new_S]
    place_S = torch.arange(len(order_S))
    # Each word's number, where its first occurrence is, and how far this one is from it.
    word_S = new_word_S.long().cumsum(dim=0) - 1
    few_S = place_S - place_S[new_word_S][word_S] < MOST_CONTEXTS
    order_S, word_S = order_S[few_S], word_S[few_S]
    room_W = torch.bincount(word_S).cumsum(dim=0) <= MOST_OCCURRENCES
    return order_S[room_W[word_S]] if len(order_S) else order_S


@dataclass(frozen=True)
class _Pick:
    """What of a batch is to be kept: where it is, what it is, and which of the old occurrences stay beside it."""

    rows_S: Tensor
    columns_S: Tensor
    words_S: Tensor
    contexts_S: Tensor
    staying_S: Tensor


class WordSample(Gathering):
    """Vectors of words by place, for metrics that read "words"."""

    def __init__(self, metrics: Sequence[BoundMetric]) -> None:
        super().__init__(metrics)
        self._words_S = torch.zeros(0, dtype=torch.long)
        self._contexts_S = torch.zeros(0, dtype=torch.long)
        self._slots_S = torch.zeros(0, dtype=torch.long)
        self._vectors: dict[Place, Tensor] = {}
        self._pick: _Pick | None = None
        self._aside: dict[Place, Tensor] = {}
        self._batches = 0

    def begin(self) -> None:
        """Start a batch."""
        self._pick = None
        self._aside.clear()

    def see(self, seen: Seen) -> None:
        """Put the vectors aside that will be kept; which they are is the same at every place."""
        shape = seen.tokens.input_BND.shape[:2]
        if seen.words_BN is None or seen.words_BN.shape != shape:
            return
        if self._pick is None:
            self._pick = self._choose(seen)
        vectors_BND = seen.tokens.input_BND
        rows_S, columns_S = (index.to(vectors_BND.device) for index in (self._pick.rows_S, self._pick.columns_S))
        self._aside[seen.place] = vectors_BND[rows_S, columns_S].cpu()

    def _choose(self, seen: Seen) -> _Pick:
        assert seen.words_BN is not None
        words_BN, mask_BN = seen.words_BN.cpu(), seen.tokens.mask_BN
        mask_BN = torch.ones_like(words_BN, dtype=torch.bool) if mask_BN is None else mask_BN.cpu()
        # Sequences of one token are left out here; vectors with NaN are when numbers are read, place by place.
        found = find_occurrences(words_BN, mask_BN & (mask_BN.sum(dim=1, keepdim=True) > 1))
        words_S, contexts_S = (
            torch.cat([old, new]) for old, new in ((self._words_S, found.words_S), (self._contexts_S, found.contexts_S))
        )
        kept_S = kept_occurrences(words_S, contexts_S).sort().values
        old = len(self._words_S)
        new_S = kept_S[kept_S >= old] - old
        return _Pick(
            found.rows_S[new_S],
            found.columns_S[new_S],
            found.words_S[new_S],
            found.contexts_S[new_S],
            staying_S=kept_S[kept_S < old],
        )

    def end(self) -> None:
        """Write the new vectors where old ones went, or behind them."""
        pick = self._pick
        if pick is None:
            return
        slots_S = self._slots_S[pick.staying_S]
        highest = int(slots_S.max()) + 1 if len(slots_S) else 0
        free = torch.ones(max(highest, len(slots_S) + len(pick.words_S)), dtype=torch.bool)
        free[slots_S] = False
        new_slots_S = free.nonzero().flatten()[: len(pick.words_S)]
        for place, vectors_SD in self._aside.items():
            self._vectors[place] = _written(self._vectors.get(place), new_slots_S, vectors_SD)
        self._slots_S = torch.cat([slots_S, new_slots_S])
        self._words_S = torch.cat([self._words_S[pick.staying_S], pick.words_S])
        self._contexts_S = torch.cat([self._contexts_S[pick.staying_S], pick.contexts_S])
        self.begin()

    def state(self) -> Any:
        """Words, contexts and vectors."""
        vectors = {place: rows[self._slots_S] for place, rows in self._vectors.items()}
        return self._words_S, self._contexts_S, vectors

    def merge(self, states: Sequence[Any]) -> None:
        """Keep of all processes what one would have kept."""
        words_S, contexts_S = (torch.cat([state[part] for state in states]) for part in range(2))
        kept_S = kept_occurrences(words_S, contexts_S)
        self._words_S, self._contexts_S = words_S[kept_S], contexts_S[kept_S]
        self._slots_S = torch.arange(len(kept_S))
        places = dict.fromkeys(place for state in states for place in state[2])
        self._vectors = {
            place: torch.cat([state[2][place] for state in states if place in state[2]])[kept_S] for place in places
        }

    def summary(self, metric: BoundMetric, place: Place) -> Summary | None:
        """Mean over words, with an interval over words."""
        if place not in self._vectors:
            return None
        values = self._values(metric, place)
        return summarise(float(len(values)), float(values.sum()), float(values.square().sum()))

    def change(self, metric: BoundMetric, first: Place, last: Place) -> Summary | None:
        """Paired by word, over the vectors that are finite at both."""
        if first not in self._vectors or last not in self._vectors:
            return None
        change = self._values(metric, last, also=first) - self._values(metric, first, also=last)
        return summarise(float(len(change)), float(change.sum()), float(change.square().sum()))

    def _values(self, metric: BoundMetric, place: Place, also: Place | None = None) -> Tensor:
        """One value per word; only of vectors that are finite at the other place too, where one is given."""
        # In the order of the hashes, not of the slots: sums are then the same on any number of processes.
        order_S = sorted_by(keys(_WORD, self._words_S), self._words_S, self._contexts_S)
        if also is not None:
            order_S = order_S[self._vectors[also][self._slots_S[order_S]].isfinite().all(dim=-1)]
        vectors_SD = self._vectors[place][self._slots_S[order_S]]
        return metric(Occurrences(vectors_SD, self._words_S[order_S]))

    def notes(self) -> list[str]:
        """Metrics for which no word was met often enough."""
        first = next(iter(self._vectors), None)
        empty = [metric.name for metric in self.metrics if first is not None and not len(self._values(metric, first))]
        return (
            [f"No word was met in enough sequences for {' and '.join(empty)}: more texts are needed."] if empty else []
        )

    def missing(self) -> UnsmoothError | None:
        """Data without ids have no words."""
        if self._vectors:
            return None
        names = " and ".join(metric.name for metric in self.metrics)
        return expected(f"token ids, whose words {names} compares,", 'inputs without "input_ids"', "texts")


def _written(rows: Tensor | None, slots_S: Tensor, vectors_SD: Tensor) -> Tensor:
    """The rows with new ones at their slots, in twice the room where it does not suffice."""
    needed = int(slots_S.max()) + 1 if len(slots_S) else 0
    if rows is None or len(rows) < needed:
        grown = vectors_SD.new_zeros(max(needed, 0 if rows is None else 2 * len(rows)), vectors_SD.shape[1])
        if rows is not None:
            grown[: len(rows)] = rows
        rows = grown
    rows[slots_S] = vectors_SD.to(rows.dtype)
    return rows
