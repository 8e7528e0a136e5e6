"""One number per sequence for every two layers: its mean over sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unsmooth.functional import BoundMetric
from unsmooth.functional._profile import LayerPairs as Declared
from unsmooth.scanning.gathering.base import Gathering, Seen
from unsmooth.scanning.gathering.sums import Sums
from unsmooth.scanning.profile import Profile, ProfileLine
from unsmooth.scanning.statistics import Place


class LayerPairSums(Gathering):
    """Sums over sequences for every two places of one site.

    What is kept of each layer of a batch waits for the layers after it; that is all that grows with depth and batch.
    """

    def __init__(self, metric: BoundMetric, declared: Declared) -> None:
        super().__init__([metric])
        self._declared = declared
        self._sums = Sums[tuple[Place, Place]]()
        self._waiting: list[tuple[Place, Tensor, Tensor]] = []

    def begin(self) -> None:
        """Start a batch."""
        self._sums.begin()
        self._waiting.clear()

    def see(self, seen: Seen) -> None:
        """Compare with all layers before it, and itself."""
        kept, here_B = self._declared.keep(seen.tokens), seen.usable_B
        self._waiting.append((seen.place, kept, here_B))
        for place, other, usable_B in self._waiting:
            # Tokens of another stage are others, also where as many were kept of both.
            here = (seen.place.site, seen.place.stage)
            if (place.site, place.stage) == here and other.shape == kept.shape:
                value_B = self._declared.compare(other.to(kept.device), kept)
                counted_B = usable_B.to(kept.device) & here_B & value_B.isfinite()
                total = torch.where(counted_B, value_B.double(), 0.0).sum().unsqueeze(0)
                self._sums.put((place, seen.place), counted_B.sum(), total)

    def end(self) -> None:
        """Add the sums."""
        self._sums.end()
        self._waiting.clear()

    def state(self) -> Any:
        """The sums."""
        return self._sums.state()

    def merge(self, states: Sequence[Any]) -> None:
        """Add the sums of all processes."""
        self._sums.merge(states)

    def profiles(self) -> list[Profile]:
        """A square matrix for each site that has two layers."""
        places = list(dict.fromkeys(later for _, later in self._sums))
        found = []
        for site in dict.fromkeys(place.site for place in places):
            here = [place for place in places if place.site == site]
            if len(here) > 1:
                lines = tuple(self._line(place, here) for place in here)
                found.append(Profile(self.metrics[0].name, site, "layer", self._declared.meaning, lines))
        return found

    def _line(self, place: Place, others: Sequence[Place]) -> ProfileLine:
        values, counts = [], []
        for other in others:
            key = (place, other) if (place, other) in self._sums else (other, place)
            count, total = self._sums[key] if key in self._sums else (0.0, torch.zeros(1))
            values.append(float(total) / count if count else math.nan)
            counts.append(int(count))
        return ProfileLine(place.layer, tuple(float(other.layer) for other in others), tuple(values), max(counts))
