"""Two processes against one with the same global batch, over fifty steps: DDP and FSDP2, three tasks.

    python -m benchmarks.process_agreement [--steps 50] [--out benchmarks/results/process_agreement.json]

The image run has full augmentation, mixing, dropout, stochastic depth, remedies and accumulated micro-batches; the
masked one hides other tokens in every epoch; the language one has a memory. All random numbers are keyed by what they
are for, so two processes draw what one draws. Compared are the losses of every step in float32, and the final weights
in float64.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.training.processes import RANKS, Job, carry_out, configs, farthest, in_processes, job, losses

from unsmooth.files import write_whole
from unsmooth.training import Config

TARGETS = {"float32_loss": 1e-5, "float64_weights": 1e-8}
WAYS = {"DDP": "replicate", "FSDP2": "shard"}
TASKS = ("images", "masked", "language")


def runs(steps: int, precision: str, sharding: str, share: int) -> dict[str, Config]:
    """The three tasks, in batches of sixteen of which a process takes `share` at a time."""
    common: dict[str, Any] = {
        "steps": steps,
        "batch": 16,
        "evaluate_every": 25.0,
        "checkpoint_every": 0.0,
        "engine__precision": precision,
        "engine__sharding": sharding,
        "optimiser__lr": 1e-3,
    }
    remedies = ("sharpen", "deescalate(learn=layer)")
    images = configs(**common, remedies=remedies, micro_batch=share // 2)["images"]
    return {**configs(**common), "images": images}


def jobs(folder: Path, steps: int) -> list[Job]:
    """What two processes do."""
    return [
        job(folder / way / precision / name, config)
        for way, sharding in WAYS.items()
        for precision in ("float32", "float64")
        for name, config in runs(steps, precision, sharding, share=16 // RANKS).items()
    ]


def compare(folder: Path, way: str, name: str) -> dict[str, Any]:
    """How far two processes are from one."""
    one, two = folder / "one", folder / way
    pairs = zip(losses(one / "float32" / name), losses(two / "float32" / name), strict=True)
    loss, weights = max(abs(a - b) for a, b in pairs), farthest(one / "float64" / name, two / "float64" / name)
    held = loss < TARGETS["float32_loss"] and weights < TARGETS["float64_weights"]
    return {"way": way, "task": name, "float32_loss": loss, "float64_weights": weights, "held": held}


def measure(steps: int) -> dict[str, Any]:
    """All runs of both kinds, and their differences."""
    begun = time.monotonic()
    with TemporaryDirectory() as name:
        folder = Path(name)
        said = in_processes(folder, jobs(folder, steps))
        wrong = [words for words in said if any(words)]
        assert not wrong, wrong
        for precision in ("float32", "float64"):
            for task, config in runs(steps, precision, "replicate", share=16).items():
                carry_out(job(folder / "one" / precision / task, config))
        found = [compare(folder, way, task) for way in WAYS for task in TASKS]
    return {
        "what": "Largest differences between two processes and one, with the same global batch.",
        "targets": TARGETS,
        "held": all(one["held"] for one in found),
        "steps": steps,
        "processes": RANKS,
        "runs": found,
        "seconds": round(time.monotonic() - begun, 1),
        "machine": {"cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()},
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/process_agreement.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(options.steps)
    for one in result["runs"]:
        print(json.dumps(one))
    write_whole(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
