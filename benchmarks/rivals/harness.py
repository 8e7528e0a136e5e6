"""Time and memory that a measurement adds to the plain forward pass of the same inputs, in one process.

Every step goes through a twin of the model without any measurement and, right after, through the measured one, so that
both meet the same weather: that gives the difference. A forward pass varies by more than a light measurement takes, so
the measurement's own time is taken as well: what goes by outside of the forward pass and in hooks during it, less what
goes by outside of the forward pass in a plain step. CPU seconds stand beside wall-clock seconds: cores may be shared.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Step = dict[str, Tensor]
Measure = Callable[[nn.Module, "Turns"], Any]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
Round = dict[str, dict[str, Any]]
"""By each clock: what every plain and every measured step took, and what went by outside of them."""
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


class Tally:
    """Seconds by each clock, added up."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(CLOCKS, 0.0)

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its seconds counted."""

        @functools.wraps(work)
        def counting(*args: Any, **kwargs: Any) -> Any:
            start = read_clocks()
            try:
                return work(*args, **kwargs)
            finally:
                for clock, end in read_clocks().items():
                    self.seconds[clock] += end - start[clock]

        return counting


@contextmanager
def tallied(model: nn.Module, twin: nn.Module) -> Iterator[tuple[Tally, Tally, Tally]]:
    """Count what the forward pass of each takes, and how much of that goes to hooks set up meanwhile."""
    measured, plain, hooks = Tally(), Tally(), Tally()
    kinds = ("register_forward_hook", "register_forward_pre_hook")
    before = {kind: getattr(nn.Module, kind) for kind in kinds}

    def counting(register: Callable[..., Any]) -> Callable[..., Any]:
        return lambda module, hook, **options: register(module, hooks.timed(hook), **options)

    for kind in kinds:
        setattr(nn.Module, kind, counting(before[kind]))
    for one, tally in ((model, measured), (twin, plain)):
        one.forward = tally.timed(one.forward)
    try:
        yield measured, plain, hooks
    finally:
        for one in (model, twin):
            del one.forward
        for kind in kinds:
            setattr(nn.Module, kind, before[kind])


def one_round(measure: Measure, model: nn.Module, twin: nn.Module, steps: Sequence[Step]) -> tuple[Round, Any]:
    """Seconds of one measurement of all steps, and what it found."""
    turns = Turns(twin, steps)
    with tallied(model, twin) as (measured, plain, hooks):
        start = read_clocks()
        found = measure(model, turns)
        whole = {clock: end - start[clock] for clock, end in read_clocks().items()}
    spent = {clock: split(turns.plain[clock], turns.measured[clock], whole[clock]) for clock in CLOCKS}
    for clock, one in spent.items():
        around_plain = sum(turns.plain[clock]) - plain.seconds[clock]
        around_measured = whole[clock] - sum(turns.plain[clock]) - measured.seconds[clock]
        one["own"] = around_measured + hooks.seconds[clock] - around_plain
    return spent, found


def split(plain: Sequence[float], measured: Sequence[float], whole: float) -> dict[str, Any]:
    """Where the seconds of a round went, given those of plain and measured steps.

    Who does not ask for a step after the last one does not say when the last one was over: it is part of what went by
    outside of the steps, without its forward pass.

    >>> split([1.0, 1.0], [1.5, 1.5], 5.25)  # a quarter of a second went by outside of the steps
    {'plain': [1.0, 1.0], 'measured': [1.5, 1.5], 'outside': 0.25}
    >>> split([1.0, 1.0], [1.5], 5.25)["outside"]
    0.75
    """
    outside = whole - sum(plain) - sum(measured) - sum(plain[len(measured) :])
    return {"plain": list(plain), "measured": list(measured), "outside": outside}


def least(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What plain passes take and what the measurement adds: each step by the least that it took in any round.

    A machine that does other things too adds to what a step takes, and never takes from it.

    >>> first = split([1.0, 9.0], [1.5, 1.5], 13.25) | {"own": 1.0}
    >>> least([first, split([8.0, 1.0], [1.5, 7.0], 17.75) | {"own": 2.0}])
    {'plain': 2.0, 'added': 1.25, 'outside': 0.25, 'own': 1.0}
    """
    ways = ("plain", "measured")
    before, after = ([min(step) for step in zip(*(one[way] for one in rounds), strict=True)] for way in ways)
    outside, own = (min(one[name] for one in rounds) for name in ("outside", "own"))
    differences = (one - other for one, other in zip(after, before, strict=False))
    return {"plain": sum(before), "added": sum(differences) + outside, "outside": outside, "own": own}


def twin_of(model: nn.Module) -> nn.Module:
    """The same model without what hangs on it, on the same weights: where weights lie in memory changes a pass, too."""
    return copy.deepcopy(model, {id(one): one for one in (*model.parameters(), *model.buffers())})


def cost(measure: Measure, model: nn.Module, steps: Sequence[Step], rounds: int) -> tuple[dict[str, Any], Any]:
    """Seconds over some rounds, and peaks of memory, with what was found."""
    twin = twin_of(model)
    # Imports, caches of kernels and the first page faults belong to neither side.
    one_round(measure, model, twin, steps[:2])
    memory = {"plain_mib": peak_of(lambda: plain(twin, steps[:4]))}
    found: list[Any] = []
    times: list[Round] = []

    def run() -> None:
        spent, result = one_round(measure, model, twin, steps)
        times.append(spent)
        found.append(result)

    memory["measured_mib"] = peak_of(run)
    for _ in range(rounds - 1):
        run()
    added = memory["measured_mib"] - memory["plain_mib"]
    return {
        "seconds": {clock: least([one[clock] for one in times]) for clock in CLOCKS},
        "rounds": [{clock: least([one[clock]]) for clock in CLOCKS} for one in times],
        "memory": memory | {"added_mib": added},
    }, found[-1]


def peak_of(run: Callable[[], object]) -> float:
    """Peak resident MiB while something runs, all that can be given back given back before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # starts the kernel's high-water mark anew, see proc(5)
    run()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
