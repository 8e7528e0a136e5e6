"""Metrics over many sequences, over two layers, and with more than one number per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist

from unsmooth.functional import BoundMetric
from unsmooth.functional._profile import LayerPairs, Profile
from unsmooth.scanning.gathering.base import Gathering, Seen
from unsmooth.scanning.gathering.layer_pairs import LayerPairSums
from unsmooth.scanning.gathering.maps import MAPS, MAPS_MEANING, MapSums
from unsmooth.scanning.gathering.profiles import ProfileSums
from unsmooth.scanning.gathering.sequences import SequenceSums
from unsmooth.scanning.gathering.words import WordSample

__all__ = ["MAPS", "MAPS_MEANING", "Gathering", "MapSums", "Seen", "gatherings_for", "merge_gatherings"]

_BY_READS: dict[str, Callable[[Sequence[BoundMetric]], Gathering]] = {
    "words": WordSample,
    "sequences": SequenceSums,
    "attention": MapSums,
}


def gatherings_for(metrics: Sequence[BoundMetric], profiles: bool = True) -> list[Gathering]:
    """One gathering for all metrics that read the same across sequences, and one for each profile that is wanted."""
    found: list[Gathering] = []
    for reads, gathering in _BY_READS.items():
        served = [metric for metric in metrics if metric.metric.reads == reads]
        if served:
            found.append(gathering(served))
    for metric in metrics if profiles else ():
        declared = metric.metric.profile
        if isinstance(declared, Profile):
            found.append(ProfileSums(metric, declared))
        elif isinstance(declared, LayerPairs):
            found.append(LayerPairSums(metric, declared))
    return found


def merge_gatherings(gatherings: Sequence[Gathering]) -> None:
    """Give every process what all of them gathered."""
    for gathering in gatherings:
        states: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(states, gathering.state())
        gathering.merge(states)
