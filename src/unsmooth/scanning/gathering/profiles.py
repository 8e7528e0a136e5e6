"""A row of numbers per sequence, such as a spectrum or a histogram: its mean over sequences at every place."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from unsmooth.functional import BoundMetric
from unsmooth.functional._profile import Profile as Declared
from unsmooth.scanning.gathering.base import Gathering, Seen
from unsmooth.scanning.gathering.sums import Sums
from unsmooth.scanning.profile import Profile, ProfileLine
from unsmooth.scanning.statistics import Place


class ProfileSums(Gathering):
    """Sums of the profiles of one metric, by place and number of columns: images of other sizes have other spectra."""

    def __init__(self, metric: BoundMetric, declared: Declared) -> None:
        super().__init__([metric])
        self._declared = declared
        takes = inspect.signature(declared.function).parameters
        self._options = {key: value for key, value in metric.options.items() if key in takes}
        self._sums = Sums[tuple[Place, int]]()

    def begin(self) -> None:
        """Start a batch."""
        self._sums.begin()

    def see(self, seen: Seen) -> None:
        """Put the sum over the batch aside."""
        options, tokens = dict(self._options), seen.tokens
        if self.metrics[0].metric.reads == "grid":
            found = seen.on_grid(self.metrics[0])
            if found is None or seen.patches is None:
                return
            options["grid"], tokens = found["grid"], seen.patches
        rows_BK = self._declared.function(tokens, **options)
        counted_B = seen.usable_B & rows_BK.isfinite().all(dim=-1)
        total_K = torch.where(counted_B.unsqueeze(-1), rows_BK.double(), 0.0).sum(dim=0)
        self._sums.put((seen.place, rows_BK.shape[1]), counted_B.sum(), total_K)

    def end(self) -> None:
        """Add it."""
        self._sums.end()

    def state(self) -> Any:
        """The sums."""
        return self._sums.state()

    def merge(self, states: Sequence[Any]) -> None:
        """Add the sums of all processes."""
        self._sums.merge(states)

    def profiles(self) -> list[Profile]:
        """One for each site; of several numbers of columns, the one that most sequences have."""
        lines: dict[Place, ProfileLine] = {}
        for place, columns in self._sums:
            count, total_K = self._sums[(place, columns)]
            if count and (place not in lines or count > lines[place].sequences):
                at = tuple(float(value) for value in self._declared.columns(columns))
                lines[place] = ProfileLine(place.layer, at, tuple((total_K / count).tolist()), int(count))
        name, declared = self.metrics[0].name, self._declared
        sites = dict.fromkeys(place.site for place in lines)
        return [
            Profile(
                metric=name,
                site=site,
                axis=declared.title,
                meaning=declared.meaning,
                lines=tuple(line for place, line in lines.items() if place.site == site),
            )
            for site in sites
        ]
