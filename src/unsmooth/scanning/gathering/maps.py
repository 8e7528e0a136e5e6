"""Metrics of attention maps: sums of per-sequence values by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.functional import BoundMetric
from unsmooth.models.attention_maps import NoAttentionMap
from unsmooth.scanning.gathering.base import Gathering, Seen
from unsmooth.scanning.gathering.sums import Sums
from unsmooth.scanning.statistics import Place, Summary, summarise

MAPS = "maps"
"""The site of attention maps in a scan."""
MAPS_MEANING = "attention weights after the softmax, per head; all tokens but padding"


class MapSums(Gathering):
    """Σ v, Σ v² and the number of sequences by layer and metric, for metrics that read "attention"."""

    def __init__(self, metrics: Sequence[BoundMetric]) -> None:
        super().__init__(metrics)
        self._sums = Sums[tuple[str, Place]]()
        self._changes = Sums[str]()
        self._first: dict[str, tuple[Place, Tensor]] = {}
        self._last: dict[str, tuple[Place, Tensor]] = {}
        self._missing: dict[int | None, NoAttentionMap] = {}

    def begin(self) -> None:
        """Start a batch."""
        for sums in (self._sums, self._changes):
            sums.begin()
        self._first.clear()
        self._last.clear()

    def see(self, seen: Seen) -> None:
        """Token vectors are not what this reads."""

    def see_maps(self, layer: int, maps_BHNN: Tensor, real_BN: Tensor | None) -> None:
        """Measure the maps of one layer on the spot."""
        place = Place(layer, MAPS)
        mask_BN = None if real_BN is None else real_BN.to(maps_BHNN.device)
        every_BN = torch.ones(maps_BHNN.shape[0], maps_BHNN.shape[-1], device=maps_BHNN.device)
        count_B = (every_BN if mask_BN is None else mask_BN).sum(dim=1)
        for metric in self.metrics:
            value_B = metric(maps_BHNN, mask_BN).double().masked_fill(count_B < 2, torch.nan)
            _put(self._sums, (metric.name, place), value_B, count_B)
            self._first.setdefault(metric.name, (place, value_B))
            self._last[metric.name] = (place, value_B)

    def no_map(self, why: NoAttentionMap) -> None:
        """A layer without a map has no numbers."""
        self._missing.setdefault(why.layer, why)

    def end(self) -> None:
        """Add the batch's sums, and how its sequences change from the first map to the last."""
        for name, (_, last_B) in self._last.items():
            _put(self._changes, name, last_B - self._first[name][1].to(last_B.device), torch.zeros_like(last_B))
        for sums in (self._sums, self._changes):
            sums.end()
        self._first.clear()
        self._last.clear()

    def state(self) -> Any:
        """The sums."""
        return self._sums.state(), self._changes.state()

    def merge(self, states: Sequence[Any]) -> None:
        """Add the sums of all processes."""
        self._sums.merge([state[0] for state in states])
        self._changes.merge([state[1] for state in states])

    @property
    def places(self) -> list[Place]:
        """Where maps were seen, by layer."""
        return sorted({place for _, place in self._sums}, key=lambda place: place.layer)

    def summary(self, metric: BoundMetric, place: Place) -> Summary | None:
        """Mean over sequences."""
        key = (metric.name, place)
        return _summary(*self._sums[key]) if key in self._sums else None

    def rows(self) -> list[tuple[Place, BoundMetric, Summary, int]]:
        """Every number, with the tokens of the sequences measured."""
        return [
            (place, metric, _summary(*self._sums[metric.name, place]), int(self._sums[metric.name, place][1][2]))
            for place in self.places
            for metric in self.metrics
        ]

    def change(self, metric: BoundMetric, first: Place, last: Place) -> Summary | None:
        """From the first map to the last, paired by sequence."""
        return _summary(*self._changes[metric.name]) if metric.name in self._changes else None

    def missing(self) -> UnsmoothError | None:
        """No layer had a map."""
        return None if self.places else next(iter(self._missing.values()), None)

    def notes(self) -> list[str]:
        """Which layers had no map, where others did."""
        layers = sorted(layer for layer in self._missing if layer is not None)
        if not layers or not self.places:
            return []
        return [f"No attention map at layers {', '.join(map(str, layers))}: {self._missing[layers[0]].reason}."]


def _put(sums: Sums[Any], key: Any, value_B: Tensor, tokens_B: Tensor) -> None:
    counted_B = value_B.isfinite()
    kept_B = torch.where(counted_B, value_B, 0.0)
    tokens = torch.where(counted_B, tokens_B.double(), 0.0).sum()
    sums.put(key, counted_B.sum(), torch.stack([kept_B.sum(), kept_B.square().sum(), tokens]))


def _summary(count: float, total: Tensor) -> Summary:
    return summarise(count, float(total[0]), float(total[1]))
