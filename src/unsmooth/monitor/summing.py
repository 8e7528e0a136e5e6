"""From the sums of one look, on all processes, to a reading."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from unsmooth.functional import BoundMetric
from unsmooth.models import Anatomy
from unsmooth.monitor.reading import Reading
from unsmooth.scanning.assemble import rows_of
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.ranks import merge, world
from unsmooth.scanning.result import Row


def agreed(problem: str) -> str:
    """The first problem that any process has: either all take part in a reading, or none does."""
    if world()[1] == 1:
        return problem
    problems: list[str] = [""] * world()[1]
    dist.all_gather_object(problems, problem)
    return next(filter(None, problems), "")


def reading_of(
    stacks: Sequence[Anatomy],
    collectors: Sequence[Collector],
    metrics: Sequence[BoundMetric],
    step: int,
    start: float,
) -> Reading:
    """The numbers of all processes; `start` is when the look began, by `time.perf_counter`."""
    rows: list[Row] = []
    healthy = True
    for stack, collector in zip(stacks, collectors, strict=True):
        merge(collector, {})
        if collector.state is not None:
            state = collector.state.to(torch.device("cpu"))  # one wait for the device, not one for each number
            rows += [replace(row, stack=stack.stack) for row in rows_of(collector, state, metrics)]
            healthy = healthy and not bool(state.nonfinite.any())
    return Reading(step, tuple(rows), time.perf_counter() - start, healthy)
