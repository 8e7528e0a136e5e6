"""From the sums of one look, on all processes, to a reading."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import Tensor

from unsmooth.functional import BoundMetric
from unsmooth.models import Anatomy
from unsmooth.monitor.problem import Problem
from unsmooth.monitor.reading import Reading
from unsmooth.scanning.assemble import rows_of
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.ranks import world
from unsmooth.scanning.result import Row
from unsmooth.scanning.statistics import Place


@dataclass(frozen=True)
class _Part:
    """What one process has seen of one stack; no places where the stack had no part in its pass."""

    places: tuple[Place, ...]
    dims: tuple[int, ...]
    sums: Mapping[str, Tensor]


def added_up(problem: Problem | None, collectors: Sequence[Collector]) -> Problem | None:
    """Let every collector hold the sums of all processes; returns the first problem that any of them has.

    Either all take part in a reading, or none does. All is said in one message: of each of a dozen sums by itself, a
    dozen GPUs would wait for each other a dozen times.
    """
    if world()[1] == 1:
        return problem
    own = [_Part(one.places, one.dims, {} if one.state is None else one.state.by_name()) for one in collectors]
    gathered: list[tuple[Problem | None, list[_Part]]] = [(None, [])] * world()[1]
    dist.all_gather_object(gathered, (problem, own))
    if found := next((problem for problem, _ in gathered if problem), None):
        return found
    for number, collector in enumerate(collectors):
        parts = [parts[number] for _, parts in gathered if parts[number].places]
        if parts and collector.state is None:
            collector.start(parts[0].places, parts[0].dims)
        if collector.state is not None:
            collector.state.become_total([part.sums for part in parts])
    return None


def reading_of(
    stacks: Sequence[Anatomy],
    collectors: Sequence[Collector],
    metrics: Sequence[BoundMetric],
    step: int,
    start: float,
) -> Reading:
    """The numbers that collectors hold; `start` is when the look began, by `time.perf_counter`."""
    rows: list[Row] = []
    healthy = True
    for stack, collector in zip(stacks, collectors, strict=True):
        if (state := collector.state) is not None:
            found = rows_of(collector, state, metrics)
            rows += [replace(row, stack=stack.stack) for row in found] if stack.stack else found
            healthy = healthy and not bool(state.nonfinite.any())
    return Reading(step, tuple(rows), time.perf_counter() - start, healthy)
