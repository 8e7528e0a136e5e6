"""What a monitor costs in a training step: windows with and without it in turn, in one run.

python -m benchmarks.monitor_cost                      # a CPU, a 12-layer ViT
python -m benchmarks.monitor_cost --device cuda        # one GPU, ViT-Ti in bfloat16, eager and compiled
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth import Monitor
from unsmooth.files import write_whole
from unsmooth.networks import ViT, ViTConfig

EVERY = (50, 10)
BARS = {50: 0.01, 10: 0.03}
# Images of 32 by 32 in patches of 2: 257 tokens with the class token.
SHAPES = {"cpu": {"image": 16, "patch": 2, "batch": 16}, "cuda": {"image": 32, "patch": 2, "batch": 256}}


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


def seconds(work: Callable[[], Any], count: int, device: str) -> tuple[float, float]:
    """For one of `count` calls, until the device is done: by the clock, and of the processor's time."""
    if device == "cuda":
        torch.cuda.synchronize()
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(count):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count, (time.process_time() - busy) / count


def measure(every: int, rounds: int, device: str, compiled: bool) -> dict[str, Any]:
    """The share of a step's time that a monitor adds: the median over pairs of windows of `every` steps.

    A window with a monitor holds one look, as `every` steps do. Which of the two comes first alternates. On a machine
    that does other things too, processor time is the one to read.
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
        plain: list[tuple[float, float]] = []
        with_monitor: list[tuple[float, float]] = []
        for number in range(rounds):
            ways = [(plain, step), (with_monitor, watched)]
            for times, work in ways if number % 2 else reversed(ways):
                times.append(seconds(work, every, device))
        assert monitor.last is not None
        look = monitor.last.seconds
    by_clock, by_processor = (
        [one[way] / other[way] - 1 for one, other in zip(with_monitor, plain, strict=True)] for way in (0, 1)
    )
    step_seconds = statistics.median(one for one, _ in plain)
    return {
        "every": every,
        "compiled": compiled,
        "step_seconds": step_seconds,
        "last_look_seconds": look,
        "last_look_over_step": look / step_seconds,
        "added_share": statistics.median(by_clock),
        "added_share_of_processor_time": statistics.median(by_processor),
        "noise_by_clock": _spread([one for one, _ in plain]),
        "noise_of_processor_time": _spread([one for _, one in plain]),
        "bar": BARS[every],
        "rounds": rounds,
    }


def _spread(times: list[float]) -> float:
    """How far a plain window is from the median plain window, as a share, in the median."""
    middle = statistics.median(times)
    return statistics.median(abs(one / middle - 1) for one in times)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(SHAPES), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--every", type=int, nargs="*", default=EVERY)
    parser.add_argument("--note", default="", help="something a reader must know of the machine")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    ways = (False, True) if arguments.device == "cuda" else (False,)
    rows = [measure(every, arguments.rounds, arguments.device, way) for way in ways for every in arguments.every]
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
