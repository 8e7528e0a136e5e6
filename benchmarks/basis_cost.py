"""What a training step of `sharpen` costs over the plain model in each of its bases, at a ViT-Ti of twelve blocks.

    python -m benchmarks.basis_cost                   # CPU -> benchmarks/results/basis_cost.json
    python -m benchmarks.basis_cost --device cuda     # GPU -> benchmarks/results/basis_cost_gpu.json

All models of a precision are built first. Then every round times one after the other in one process, the next round
beginning with the next of them, and a ratio is of two times of one round; the first round warms up and is not kept. On
a GPU each step is one captured CUDA graph, under bfloat16 autocast and in float32; on a CPU it runs eagerly in float32,
on one thread, and seconds are the processor's, as cores may be shared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.remedy_jobs import NOISE, Job, Variant
from benchmarks.remedy_steps import PRE_NORM, Size, Step
from unsmooth.evidence.records import commit
from unsmooth.files import write_whole

RESULTS = Path(__file__).parent / "results"
GPU = Size(layers=12, patch=4, batch=96, images=4096, rounds=9, steps=20)
CPU = Size(layers=12, patch=4, batch=32, images=64, rounds=15, steps=1)
PRECISIONS = {"cuda": ("bfloat16 autocast", "float32"), "cpu": ("float32",)}
BAR = 1.10
VARIANTS = (
    None,  # the plain model once more: the noise
    Variant("sharpen", {"basis": "schur", "start": "fresh"}, BAR),
    Variant("sharpen", {"basis": "schur", "start": "fresh", "upper": 1.0}, BAR),
    Variant("sharpen", {"basis": "general", "start": "fresh"}, BAR),
    Variant("sharpen", {"basis": "orthogonal", "start": "fresh"}, BAR),
    Variant("sharpen", {"basis": "gram", "start": "fresh"}),
    Variant("sharpen", {"basis": "gram", "start": "fresh", "eigenvalues": "rescale"}),
)


def measure(steps: Sequence[Step], size: Size) -> list[list[float]]:
    """Seconds of a step, by round and model."""
    found = []
    for number in range(-1, size.rounds):  # the first warms up
        order = [(place + number) % len(steps) for place in range(len(steps))]
        taken = {place: seconds(steps[place], size.steps) for place in order}
        found.append([taken[place] for place in range(len(steps))])
    return found[1:]


def seconds(step: Step, count: int) -> float:
    """Of one step, over `count` of them."""
    start = time.process_time()
    wall = step.seconds(count)
    return wall if step.device == "cuda" else (time.process_time() - start) / count


def rows_of(precision: str, device: str, size: Size) -> tuple[list[dict[str, Any]], float]:
    """A row for each variant, and the plain model's seconds."""
    jobs = [Job(PRE_NORM), *(Job(PRE_NORM, variant) for variant in VARIANTS)]
    half = precision != "float32"
    rounds = measure([Step(job.model(size, device), size, device, "eager", half=half).ready() for job in jobs], size)
    rows = []
    for place, variant in enumerate(VARIANTS, start=1):
        low, middle, high = statistics.quantiles((taken[place] / taken[0] for taken in rounds), n=4)
        row = {"remedy": NOISE, "bar": None} if variant is None else {"remedy": variant.label, "bar": variant.bar}
        rows.append({"precision": precision, **row, "over_plain": middle, "low": low, "high": high})
        print(json.dumps(rows[-1]), flush=True)
    return rows, statistics.median(taken[0] for taken in rounds)


def main(words: Sequence[str] | None = None) -> None:
    """Measure and write."""
    reader = argparse.ArgumentParser(description="What sharpen costs in each basis.", allow_abbrev=False)
    reader.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    reader.add_argument("--out", type=Path)
    for name in ("rounds", "steps", "layers", "batch"):
        reader.add_argument(f"--{name}", type=int)
    given = vars(reader.parse_args(words))
    device, out = given.pop("device"), given.pop("out")
    cuda = device == "cuda"
    size = replace(GPU if cuda else CPU, **{name: number for name, number in given.items() if number is not None})
    if not cuda:
        torch.set_num_threads(1)
    content: dict[str, Any] = {
        "what": "Step time of sharpen in each basis over the plain model's, medians and quartiles over rounds.",
        "step": f"ViT-Ti (torch's encoder, d 192, {size.layers} layers), {size.tokens} tokens, batch {size.batch}, "
        f"AdamW, clipping; {'one CUDA graph' if cuda else 'one thread, eager'}",
        "machine": {"gpu": torch.cuda.get_device_name()} if cuda else {"cpu_threads": 1},
        "torch": torch.__version__,
        "rounds": size.rounds,
        "steps_per_round": size.steps,
        "plain_seconds": {},
        "rows": [],
        **commit(),
    }
    out = out or RESULTS / ("basis_cost_gpu.json" if cuda else "basis_cost.json")
    for precision in PRECISIONS[device]:
        rows, content["plain_seconds"][precision] = rows_of(precision, device, size)
        content["rows"] += rows
        write_whole(out, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
