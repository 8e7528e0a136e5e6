"""What a monitor costs in a training step: pieces of a few steps with and without it in turn, in one run.

python -m benchmarks.monitor_cost                      # a CPU, a 12-layer ViT
python -m benchmarks.monitor_cost --device cuda        # one GPU, ViT-Ti in bfloat16, eager and compiled

Beside the share that a monitor adds, each row says where it comes from. A GPU works while the host prepares what comes
next: where `step_host_seconds` is far below `step_seconds`, the GPU is what a step waits for, and a look costs what the
GPU does for it and what the host does while the GPU has nothing; where they are alike, all of `look_host_seconds` is
added. A launch is a piece of work handed to the device, a wait a time at which the host stops for it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unsmooth import Monitor
from unsmooth.files import write_whole
from unsmooth.networks import ViT, ViTConfig

EVERY = (50, 10)
BARS = {50: 0.01, 10: 0.03}
# Steps that are timed together.
PIECE = 5
# Of one step, by the clock and of the processor's time.
Seconds = tuple[float, float]
# Images of 32 by 32 in patches of 2: 257 tokens with the class token.
SHAPES = {"cpu": {"image": 16, "patch": 2, "batch": 16}, "cuda": {"image": 32, "patch": 2, "batch": 256}}
# What gives no work to a device: room for tensors, and other names for them.
NO_WORK = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "_unsafe_view", "resize_"}
# What the host has to know the result of, because a shape or a branch depends on it.
ANSWERS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "unique_dim", "_unique2"}


class Work(TorchDispatchMode):
    """Counts what a device is given to do and how often the host waits for it.

    Args:
        device: The kind of device. "meta" stands for a GPU where there is none; its answers are zeros.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.launches, self.waits = device, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, function.overloadpacket.__name__
        given = self._here((args, kwargs))
        brought = name == "_to_copy" and given and torch.device(kwargs.get("device") or self.device).type != self.device
        if brought and self.device == "meta":
            found: Any = torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        else:
            found = function(*args, **kwargs)
        if (given or self._here(found)) and not function.is_view and name not in NO_WORK:
            self.launches += 1
            sent = name in ("_to_copy", "copy_") and self._elsewhere((args, kwargs)) and not kwargs.get("non_blocking")
            self.waits += bool(brought or sent or name in ANSWERS)
        return found

    def _here(self, tensors: Any) -> bool:
        return any(one.device.type == self.device for one in tree_leaves(tensors) if isinstance(one, Tensor))

    def _elsewhere(self, tensors: Any) -> bool:
        return any(one.device.type != self.device for one in tree_leaves(tensors) if isinstance(one, Tensor))


def make(device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A ViT-Ti of 12 layers, and a batch for it."""
    shape = SHAPES[device]
    model = ViT(ViTConfig(image=shape["image"], patch=shape["patch"], classes=10)).to(device).train()
    images = torch.randn(shape["batch"], 3, shape["image"], shape["image"], device=device)
    return model, images, torch.randint(0, 10, (shape["batch"],), device=device)


def step_of(model: nn.Module, called: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """One step of AdamW, in bfloat16 on a GPU."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=images.is_cuda)

    def step() -> None:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            loss = nn.functional.cross_entropy(called(images), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def seconds(work: Callable[[], Any], count: int, device: str) -> Seconds:
    """For one of `count` calls, until the device is done: by the clock, and of the processor's time."""
    if device == "cuda":
        torch.cuda.synchronize()
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(count):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count, (time.process_time() - busy) / count


def host_seconds(work: Callable[[], Any], device: str, between: Callable[[], Any] = lambda: None) -> float:
    """For one call that finds the device idle, until it returns: the median of some."""
    times = []
    for _ in range(9):
        between()
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def look_alone(monitor: Monitor, step: Callable[[], None], device: str) -> dict[str, Any]:
    """What one look is made of, outside of any window."""

    def look() -> None:
        monitor.step(monitor.every)  # a step at which one is due

    with Work(device) as work:
        look()
    # A compiled model that a look has disturbed would be compiled anew by the step after it.
    before = graphs_made()
    host = host_seconds(look, device, between=step)
    return {
        "launches": work.launches,
        "waits": work.waits,
        "look_host_seconds": host,
        "step_host_seconds": host_seconds(step, device),
        "step_host_seconds_after_a_look": host_seconds(step, device, between=look),
        "recompiled": graphs_made() - before,
    }


def graphs_made() -> int:
    """By torch.compile, so far."""
    from torch._dynamo.utils import counters  # takes seconds to load

    return counters["stats"]["unique_graphs"]


@dataclass
class Window:
    """As many steps with a monitor as without, in short pieces in turn: both meet the same machine."""

    plain: list[Seconds] = field(default_factory=list)
    watched: list[Seconds] = field(default_factory=list)

    def added(self, way: int) -> float:
        """The share that the monitor added, by the clock (0) or of the processor's time (1)."""
        return _sum(self.watched, way) / _sum(self.plain, way) - 1

    def nothing(self, way: int) -> float:
        """What the same comparison says of plain pieces beside plain ones."""
        return _sum(self.plain[::2], way) / _sum(self.plain[1::2], way) - 1


def _sum(times: list[Seconds], way: int) -> float:
    return sum(one[way] for one in times)


def measure(every: int, rounds: int, device: str, compiled: bool) -> dict[str, Any]:
    """The share of a step's time that a monitor adds: the median over windows of `every` steps each way.

    A window holds one look, as `every` steps do. Which of two pieces comes first alternates. On a machine that does
    other things too, processor time is the one to read.
    """
    model, images, labels = make(device)
    called: Any = torch.compile(model) if compiled else model
    step = step_of(model, called, images, labels)
    with tempfile.TemporaryDirectory() as folder, Monitor(called, every=every, out=folder) as monitor:

        def watched() -> None:
            step()
            monitor.step()

        for _ in range(2 * every):  # warm, and the first look done
            watched()
        windows = [Window() for _ in range(rounds)]
        turns = itertools.cycle((False, True, True, False))
        for window in windows:
            for _ in range(every // PIECE):
                ways = [(window.plain, step), (window.watched, watched)]
                for times, work in reversed(ways) if next(turns) else ways:
                    times.append(seconds(work, PIECE, device))
        assert monitor.last is not None
        look = monitor.last.seconds
        alone = look_alone(monitor, step, device)
    step_seconds = statistics.median(one for window in windows for one, _ in window.plain)
    median = {
        name: statistics.median(read(window, way) for window in windows)
        for way, clock in enumerate(("", "_of_processor_time"))
        for name, read in ((f"added_share{clock}", Window.added), (f"plain_beside_plain{clock}", Window.nothing))
    }
    return {
        "every": every,
        "compiled": compiled,
        "step_seconds": step_seconds,
        "last_look_seconds": look,
        "last_look_over_step": look / step_seconds,
        **alone,
        **median,
        "bar": BARS[every],
        "rounds": rounds,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(SHAPES), default="cpu")
    parser.add_argument("--rounds", type=int, default=7, help="of windows of 50 steps; of shorter ones more")
    parser.add_argument("--every", type=int, nargs="*", default=EVERY)
    parser.add_argument("--note", default="", help="something a reader must know of the machine")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    if odd := [every for every in arguments.every if every % (2 * PIECE)]:
        parser.error(f"--every: expected multiples of {2 * PIECE} but got {odd[0]}")
    logging.basicConfig(level=logging.WARNING)
    ways = (False, True) if arguments.device == "cuda" else (False,)
    rounds = {every: max(arguments.rounds, arguments.rounds * max(EVERY) // every) for every in arguments.every}
    rows = [measure(every, rounds[every], arguments.device, way) for way in ways for every in arguments.every]
    for row in rows:
        print(json.dumps(row))
    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else None
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "gpu": gpu}
    report = {
        "what": (__doc__ or "").splitlines()[0],
        "model": {"layers": 12, "dim": 192, **SHAPES[arguments.device]},
        "machine": {**machine, "threads": torch.get_num_threads(), "torch": torch.__version__},
        "note": arguments.note,
        "rows": rows,
    }
    name = "monitor_cost.json" if arguments.device == "cpu" else "monitor_cost_gpu.json"
    write_whole(arguments.out or Path("benchmarks/results") / name, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
