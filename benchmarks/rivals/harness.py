"""Time and memory that a measurement adds to the plain forward pass of the same inputs, in one process.

Every step goes through a twin of the model without any measurement and, right after, through the measured one, so that
both meet the same weather. CPU seconds stand beside wall-clock seconds: cores may be shared.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Step = dict[str, Tensor]
Measure = Callable[[nn.Module, "Turns"], Any]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
WINDOW = 8
"""Steps whose median difference stands for each of them: less than a text's share of what grows with the texts."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Turns:
    """Hands out steps, each after a plain pass of a twin of the model, and keeps what both took.

    Args:
        twin: The model without any measurement.
        steps: Inputs of the model.
    """

    def __init__(self, twin: nn.Module, steps: Sequence[Step]) -> None:
        self.twin, self.steps = twin, steps
        self.plain: dict[str, list[float]] = {clock: [] for clock in CLOCKS}
        self.measured: dict[str, list[float]] = {clock: [] for clock in CLOCKS}

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        for step in self.steps:
            start = read_clocks()
            plain(self.twin, [step])
            end = read_clocks()
            for clock in CLOCKS:
                self.plain[clock].append(end[clock] - start[clock])
            yield step
            after = read_clocks()
            for clock in CLOCKS:
                self.measured[clock].append(after[clock] - end[clock])


def read_clocks() -> dict[str, float]:
    """Seconds by each clock."""
    return {name: read() for name, read in CLOCKS.items()}


def plain(model: nn.Module, steps: Sequence[Step]) -> None:
    """The forward pass alone."""
    with torch.no_grad():
        for step in steps:
            model(**step)


def one_round(measure: Measure, model: nn.Module, twin: nn.Module, steps: Sequence[Step]) -> tuple[dict[str, Any], Any]:
    """Seconds of one measurement of all steps, and what it found."""
    turns = Turns(twin, steps)
    start = read_clocks()
    found = measure(model, turns)
    whole = {clock: read() - start[clock] for clock, read in CLOCKS.items()}
    return {clock: seconds(turns.plain[clock], turns.measured[clock], whole[clock]) for clock in CLOCKS}, found


def seconds(plain_steps: Sequence[float], measured_steps: Sequence[float], whole: float) -> dict[str, float]:
    """What plain passes took and what the measurement added, weather smoothed away by medians.

    Who does not ask for a step after the last one does not say when the last one was over: it is part of what went by
    outside of the steps, without its forward pass.

    >>> seconds([1.0, 1.0], [1.5, 1.5], 5.25)  # a quarter of a second went by outside of the steps
    {'plain': 2.0, 'added': 1.25, 'outside': 0.25}
    >>> seconds([1.0, 1.0], [1.5], 5.25)
    {'plain': 2.0, 'added': 1.25, 'outside': 0.75}
    """
    outside = whole - sum(plain_steps) - sum(measured_steps) - sum(plain_steps[len(measured_steps) :])
    differences = [after - before for before, after in zip(plain_steps, measured_steps, strict=False)]
    return {
        "plain": robust_sum(plain_steps),
        "added": robust_sum(differences) + outside,
        "outside": outside,
    }


def robust_sum(values: Sequence[float]) -> float:
    """A sum in which each window of neighbours counts by its median: one value out of line does not show.

    >>> robust_sum([1.0, 1.0, 1.0, 9.0, 1.0])
    5.0
    """
    windows = [values[start : start + WINDOW] for start in range(0, len(values), WINDOW)]
    return sum(len(window) * statistics.median(window) for window in windows)


def cost(measure: Measure, model: nn.Module, steps: Sequence[Step], rounds: int) -> tuple[dict[str, Any], Any]:
    """Medians over rounds of seconds, and peaks of memory, with what was found."""
    twin = copy.deepcopy(model)
    # Imports, caches of kernels and the first page faults belong to neither side.
    one_round(measure, model, twin, steps[:2])
    memory = {"plain_mib": peak_of(lambda: plain(twin, steps[:4]))}
    found: list[Any] = []
    times: list[dict[str, Any]] = []

    def run() -> None:
        spent, result = one_round(measure, model, twin, steps)
        times.append(spent)
        found.append(result)

    memory["measured_mib"] = peak_of(run)
    for _ in range(rounds - 1):
        run()
    medians = {
        clock: {name: statistics.median(one[clock][name] for one in times) for name in times[0][clock]}
        for clock in CLOCKS
    }
    added = memory["measured_mib"] - memory["plain_mib"]
    return {"seconds": medians, "rounds": times, "memory": memory | {"added_mib": added}}, found[-1]


def peak_of(run: Callable[[], object]) -> float:
    """Peak resident MiB while something runs, all that can be given back given back before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # starts the kernel's high-water mark anew, see proc(5)
    run()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
