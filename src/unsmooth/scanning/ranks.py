"""Several processes, one result: who reads which batch, and how the parts come together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torchmetrics import Metric

from unsmooth.errors import UnsmoothError
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import RawBatch, Source
from unsmooth.scanning.gathering import merge_gatherings


def world() -> tuple[int, int]:
    """This process's rank and the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@contextmanager
def lost_ranks_told() -> Iterator[None]:
    """What a process group says when one of its processes is gone or hangs, in one line.

    Gloo raises a bare RuntimeError that begins with a line of its own source.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(one in str(error).lower() for one in ("gloo", "nccl")):
            raise
        rank, size = world()
        raise UnsmoothError(
            f"Expected {size} processes to scan together but got no answer from another one on rank {rank}. "
            "Try the same command again; what the lost process said last tells why."
        ) from error


def own_batches(source: Source, max_batches: int | None) -> Iterator[tuple[int, RawBatch]]:
    """This rank's batches with their numbers.

    Whole batches are dealt out, so that N processes run exactly the batches that one process would. A loader with a
    DistributedSampler has dealt already and is read to its end.
    """
    rank, size = world()
    for index, batch in enumerate(source.read()):
        if source.sharded:
            number = index * size + rank
            if max_batches is not None and number >= max_batches:
                return
            yield number, batch
        else:
            if max_batches is not None and index >= max_batches:
                return
            if index % size == rank:
                yield index, batch


def merge(collector: Collector, digests: dict[int, bytes]) -> list[bytes]:
    """Add the sums of all ranks up in place, and return the batch hashes of all ranks in order."""
    if world()[1] > 1:
        # Gathered as one object: a rank without a batch does not know the places yet and must still take part.
        gathered: list[tuple[object, object, dict[str, None], dict[int, bytes]] | None] = [None] * world()[1]
        dist.all_gather_object(gathered, (collector.places, collector.dims, collector.notes, digests))
        parts = [part for part in gathered if part is not None]
        digests = {number: digest for *_, found in parts for number, digest in found.items()}
        collector.notes = {note: None for _, _, notes, _ in parts for note in notes}
        layouts = [(places, dims) for places, dims, *_ in parts if places]
        if collector.state is None and layouts:
            collector.start(*layouts[0])  # type: ignore[arg-type]
        for state in (collector.state, collector.confounds):
            if isinstance(state, Metric):
                state.sync()
        merge_gatherings(collector.gatherings)
    return [digests[number] for number in sorted(digests)]
