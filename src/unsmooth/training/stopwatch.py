"""What a training step costs: a remedied model beside the plain one, in turns, so that both meet the same machine."""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch

from unsmooth.training import Config, RunFolder
from unsmooth.training.driving import surrounded
from unsmooth.training.place import Place, take_place
from unsmooth.training.run import Run

ROUNDS = 5
_SECONDS_OF_A_ROUND, _MOST_STEPS = 0.05, 50


@dataclass(frozen=True)
class Timing:
    """Of one training step: data, forward, backward, update.

    Attributes:
        seconds: Median over rounds.
        ratio: Over the plain model's step, median over rounds in which both were timed one after the other.
        memory: Bytes that a run alone holds at its highest on a GPU, data included; None elsewhere.
        steps_of_a_unit: Steps in what the run's length is given in.
    """

    seconds: float
    ratio: float
    memory: int | None
    steps_of_a_unit: float


class Stopwatch:
    """Holds the plain run of a model ready, to time others beside it.

    Args:
        plain: Its settings.
        place: Where to.
    """

    def __init__(self, plain: Config, place: Place) -> None:
        self._place, self._open = place, ExitStack()
        self._plain, self.memory = self._open.enter_context(_ready(plain, place))

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def plain(self) -> Timing:
        """The plain model itself."""
        run = self._plain
        _seconds(run, 1)
        steps = _steps(run)
        found = statistics.median(_seconds(run, steps) for _ in range(ROUNDS))
        return Timing(found, 1.0, self.memory, _unit(run))

    def beside(self, config: Config) -> Timing:
        """A remedied model."""
        with _ready(config, self._place) as (run, memory):
            pair = (self._plain, run)
            for one in pair:
                _seconds(one, 1)
            steps = [_steps(one) for one in pair]
            rounds = [[_seconds(one, count) for one, count in zip(pair, steps, strict=True)] for _ in range(ROUNDS)]
            ratio = statistics.median(taken / plain for plain, taken in rounds)
            return Timing(statistics.median(taken for _, taken in rounds), ratio, memory, _unit(run))


def seconds_of_a_run(config: Config) -> float:
    """About what a run takes, by a step of it."""
    with take_place(config.engine.device) as place, _ready(config, place) as (run, _):
        return _seconds(run, 1) * run.table.steps


@contextmanager
def _ready(config: Config, place: Place) -> Iterator[tuple[Run, int | None]]:
    """A run that has made its first steps, in a folder that is gone afterwards; and the memory that it took."""
    on_gpu = place.device.type == "cuda"
    _forget(on_gpu)
    before = torch.cuda.memory_allocated(place.device) if on_gpu else 0
    with tempfile.TemporaryDirectory(prefix="unsmooth-") as folder, surrounded(config, place):
        # A batch that grows over the run would make a step of one model more than a step of the other.
        run = Run(replace(config, ramp=0.0), RunFolder(folder), place)
        try:
            _seconds(run, 2)
            yield run, torch.cuda.max_memory_allocated(place.device) - before if on_gpu else None
        finally:
            run.journal.close()
            del run
            _forget(on_gpu)


def _forget(on_gpu: bool) -> None:
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _unit(run: Run) -> float:
    return 1.0 if run.config.steps is not None else run.table.per_epoch / run.table.passes


def _steps(run: Run) -> int:
    """So many that a clock can tell how long they took."""
    return max(1, min(_MOST_STEPS, math.ceil(_SECONDS_OF_A_ROUND / _seconds(run, 1))))


def _seconds(run: Run, steps: int) -> float:
    """Of one step, over so many."""
    _wait(run)
    start = time.perf_counter()
    for _ in range(steps):
        run.move()
    _wait(run)
    return (time.perf_counter() - start) / steps


def _wait(run: Run) -> None:
    if run.place.device.type == "cuda":
        torch.cuda.synchronize(run.place.device)
