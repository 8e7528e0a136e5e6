"""Tokens of different sequences: sums of mean directions, from which every pair of sequences can be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from unsmooth.functional import BoundMetric, SequenceMeans
from unsmooth.functional.random_pair_cosine import mean_directions
from unsmooth.scanning.gathering.base import Gathering, Seen
from unsmooth.scanning.gathering.sums import Sums
from unsmooth.scanning.statistics import Place, Summary


class SequenceSums(Gathering):
    """Σ ū, Σ ‖ū‖² and the number of sequences by place, for metrics that read "sequences"."""

    def __init__(self, metrics: Sequence[BoundMetric]) -> None:
        super().__init__(metrics)
        self._sums = Sums[Place]()

    def begin(self) -> None:
        """Start a batch."""
        self._sums.begin()

    def see(self, seen: Seen) -> None:
        """Put the batch's sums aside, the squares behind the directions."""
        usable_B = seen.usable_B
        mean_BD = torch.where(usable_B.unsqueeze(-1), mean_directions(seen.tokens), 0.0)
        total = torch.cat([mean_BD.sum(dim=0), mean_BD.square().sum().unsqueeze(0)])
        self._sums.put(seen.place, usable_B.sum(), total)

    def end(self) -> None:
        """Add them."""
        self._sums.end()

    def state(self) -> Any:
        """The sums."""
        return self._sums.state()

    def merge(self, states: Sequence[Any]) -> None:
        """Add the sums of all processes."""
        self._sums.merge(states)

    def summary(self, metric: BoundMetric, place: Place) -> Summary | None:
        """One number for all sequences, which has no interval over them."""
        if place not in self._sums:
            return None
        count, total = self._sums[place]
        means = SequenceMeans(total[:-1], total[-1], torch.tensor(count, dtype=torch.float64))
        return Summary(float(metric(means)), math.nan, math.nan, math.nan, int(count) if count > 1 else 0)

    def change(self, metric: BoundMetric, first: Place, last: Place) -> Summary | None:
        """The difference of the two numbers."""
        ends = [self.summary(metric, place) for place in (first, last)]
        if ends[0] is None or ends[1] is None:
            return None
        return Summary(ends[1].mean - ends[0].mean, math.nan, math.nan, math.nan, ends[1].sequences)
