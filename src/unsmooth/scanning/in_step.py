"""Batches for a model that is sharded over processes: it runs on all of them at once, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from unsmooth.scanning.data import RawBatch, Source
from unsmooth.scanning.ranks import own_batches, world


def batches_in_step(source: Source, max_batches: int | None) -> Iterator[tuple[int | None, RawBatch]]:
    """This rank's batches with their numbers, as many on every rank.

    Where the last round has fewer batches than there are ranks, those without one run its first, numbered None. A
    loader with a DistributedSampler has dealt out as many to each rank already.
    """
    rank, size = world()
    if source.sharded:
        yield from own_batches(source, max_batches)
        return
    batches, number = islice(source.read(), max_batches), rank
    while around := list(islice(batches, size)):
        yield (number, around[rank]) if rank < len(around) else (None, around[0])
        number += size
