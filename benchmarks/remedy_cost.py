"""What each remedy costs in a training step, over the plain model.

On a GPU the whole step (gather, forward and backward in bfloat16, clipping, fused AdamW) is one captured CUDA graph,
once of the model as it is written and once of the compiled model. On a CPU the step is smaller and runs eagerly.

    python -m benchmarks.remedy_cost                  # CPU -> benchmarks/results/remedy_cost.json
    python -m benchmarks.remedy_cost --device cuda    # GPU -> benchmarks/results/remedy_cost_gpu.json
    python -m benchmarks.remedy_cost --device cuda --minutes 9   # exit code 3 while rows are left: call it again
    python -m benchmarks.remedy_cost --device cuda --compile-only   # beside other work; what it makes is found later

First ``--workers`` processes compile all models that are to be measured, side by side; then this one measures each,
with what they compiled. Rows are written as they are measured, each with the commit it is of.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from benchmarks.compile_ahead import cached, compile_ahead, share_cache
from benchmarks.remedy_jobs import Job, all_jobs
from benchmarks.remedy_steps import Size, Step, ratio
from unsmooth.cli.app import EXIT_NOT_FINISHED
from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.records import commit
from unsmooth.files import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
GPU = Size(layers=12, patch=4, batch=96, images=4096, rounds=9, steps=30)
CPU = Size(layers=4, patch=4, batch=16, images=64, rounds=9, steps=3)
WHAT = "Step time over the plain model for each remedy, both timed in turn in one process."
Key = tuple[bool, str, str, bool]


def key_of(row: dict[str, Any]) -> Key:
    """What a row is of, and whether compiled."""
    return row["compiled"], row["norm"], row["remedy"], row["folded"]


class Book:
    """The rows so far, in a file that is written whenever there is one more."""

    def __init__(self, path: Path, settings: dict[str, Any], again: bool) -> None:
        self.path, self.settings = path, settings
        self.rows: dict[Key, dict[str, Any]] = {}
        self.plain: dict[bool, dict[str, float]] = {}
        if path.exists():
            self._read(json.loads(path.read_text(encoding="utf-8")), again)

    def _read(self, found: dict[str, Any], again: bool) -> None:
        modes = found.pop("modes")
        del found["what"]
        if found != self.settings:
            if not again:
                other = ", ".join(key for key in self.settings | found if found.get(key) != self.settings.get(key))
                raise expected(f"rows of the same settings in {self.path}", f"another {other}", "--again, or --out")
            return
        for mode in modes:
            self.plain[mode["compiled"]] = mode["plain_seconds"]
            # Rows that do not say what they are of cannot stand beside others.
            self.rows |= {key_of(row): row for row in mode["rows"] if "commit" in row}

    def forget(self, jobs: Sequence[Job], modes: Sequence[bool]) -> None:
        """These are to be measured again."""
        for compiled in modes:
            for job in jobs:
                self.rows.pop(key_of(job.row(compiled)), None)

    def left(self, jobs: Sequence[Job], compiled: bool) -> list[Job]:
        """Those without a row, or with one that says only how it failed."""
        return [job for job in jobs if "over_plain" not in self.rows.get(key_of(job.row(compiled)), {})]

    def add(self, row: dict[str, Any]) -> None:
        """One more, of this commit."""
        self.rows[key_of(row)] = row | commit()
        order = {key_of(job.row(compiled)): None for compiled in (False, True) for job in all_jobs()}
        modes = [
            {
                "compiled": compiled,
                "plain_seconds": self.plain[compiled],
                "rows": [self.rows[key] for key in order if key in self.rows and key[0] == compiled],
            }
            for compiled in sorted({key[0] for key in self.rows})
        ]
        write_whole(self.path, json.dumps({"what": WHAT, **self.settings, "modes": modes}, indent=1) + "\n")


@dataclass(frozen=True)
class Bench:
    """How everything is measured."""

    size: Size
    device: str
    regional: bool

    def step(self, job: Job, compiled: bool) -> Step:
        """Of the job's model, not run yet."""
        how = "eager" if not compiled else "regional" if self.regional else "compiled"
        return Step(job.model(self.size, self.device), self.size, self.device, how)

    def settings(self) -> dict[str, Any]:
        """What rows must have in common to be of one table."""
        size, cuda = self.size, self.device == "cuda"
        return {
            "step": f"ViT-Ti (torch's encoder, d 192, {size.layers} layers), {size.tokens} tokens, batch {size.batch}, "
            + f"AdamW, clipping; {'bfloat16 autocast, one CUDA graph' if cuda else 'float32, one thread, eager'}"
            + ("; compiled block by block" if self.regional else ""),
            "machine": {"gpu": torch.cuda.get_device_name()} if cuda else {"cpu_threads": 1},
            "torch": torch.__version__,
            "rounds": size.rounds,
            "steps_per_round": size.steps,
        }


def compile_one(job: Job, bench: Bench) -> str:
    """In a process of its own: one step, so that forward and backward are in the cache."""
    start = time.monotonic()
    try:
        bench.step(job, compiled=True).work()
    except (RuntimeError, FailOnRecompileLimitHit) as error:  # told again, and kept, where it is measured
        return f"{job.row(True)['remedy']}: {_first_line(error)}"
    if bench.device == "cuda":
        torch.cuda.empty_cache()
    return f"{job.row(True)['remedy']}, {job.norm}: compiled in {time.monotonic() - start:.0f} s, {cached()}"


def measure(job: Job, plain: Step, bench: Bench, compiled: bool) -> dict[str, Any]:
    """A row. What a CUDA graph cannot hold is timed without one, beside the plain model without one."""
    row, reason = job.row(compiled), job.not_captured if bench.device == "cuda" else None
    captured = reason is None
    try:
        step = bench.step(job, compiled).ready(captured=captured)
        beside = plain if captured else bench.step(Job(job.norm), compiled).ready(captured=False)
        return row | ratio(step, beside, bench.size) | ({} if captured else {"not_captured": reason})
    except (RuntimeError, FailOnRecompileLimitHit) as error:
        return row | {"failed": _first_line(error)}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def run(jobs: Sequence[Job], bench: Bench, book: Book, compiled: bool, until: float) -> bool:
    """Every job beside the plain model; False where time was over before."""
    for norm in dict.fromkeys(job.norm for job in jobs):
        if time.monotonic() > until:
            return False
        plain = bench.step(Job(norm), compiled).ready()
        book.plain.setdefault(compiled, {})[norm] = plain.seconds(bench.size.steps)
        for job in (job for job in jobs if job.norm == norm):
            if time.monotonic() > until:
                return False
            start = time.monotonic()
            row = measure(job, plain, bench, compiled)
            book.add(row)
            print(json.dumps(row | {"seconds": round(time.monotonic() - start, 1), "cache": cached()}), flush=True)
    return True


def main(words: Sequence[str] | None = None) -> int:
    """Compile, measure and write."""
    given = _reader().parse_args(words)
    until = math.inf if given.minutes is None else time.monotonic() + 60.0 * given.minutes
    cuda = given.device == "cuda"
    modes = _modes(given.modes, cuda)
    if not cuda:
        torch.set_num_threads(1)
    bench = Bench(replace(GPU if cuda else CPU, patch=given.patch), given.device, given.regional)
    out = given.out or RESULTS / ("remedy_cost_gpu.json" if cuda else "remedy_cost.json")
    book, jobs = Book(out, bench.settings(), given.again), list(all_jobs(given.only))
    if given.again:
        book.forget(jobs, modes)
    if True in modes:
        share_cache(given.cache)
    for compiled in modes:
        left = book.left(jobs, compiled)
        if compiled and given.workers > 1 and left:
            # Folded ones are often the plain model, which is in the cache by then.
            last = sorted(left, key=lambda job: job.folded)
            for said in compile_ahead(partial(compile_one, bench=bench), last, given.cache, given.workers, until):
                print(said, flush=True)
        if not given.compile_only and not run(left, bench, book, compiled, until):
            return EXIT_NOT_FINISHED
    return 0


def _modes(words: str | None, cuda: bool) -> list[bool]:
    """Whether compiled, one after the other."""
    known = {"eager": False, "compiled": True} if cuda else {"eager": False}
    names = list(known) if words is None else words.split(",")
    for name in names:
        if name not in known:
            raise expected(f"modes among {', '.join(known)} on this device", repr(name), "--device cuda")
    return [known[name] for name in names]


def _reader() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    reader = argparse.ArgumentParser(description="What each remedy costs in a training step.", allow_abbrev=False)
    reader.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    reader.add_argument("--out", type=Path)
    reader.add_argument("--only", action="append", help="a variant by its label; may be repeated")
    reader.add_argument("--modes", help="on a GPU: eager, compiled or both, in the order in which they are measured")
    reader.add_argument("--patch", type=int, default=4)
    reader.add_argument("--regional", action="store_true", help="compile a block at a time, not the whole model")
    reader.add_argument("--workers", type=int, default=cores - 2, help="processes that compile; with 1 or less, none")
    reader.add_argument("--cache", type=Path, default=ROOT / "build" / "inductor", help="of what is compiled")
    reader.add_argument("--compile-only", action="store_true", help="measure nothing: others use the device")
    reader.add_argument("--minutes", type=float, help="stop after so many; the same command goes on from there")
    reader.add_argument("--again", action="store_true", help="measure again what has been measured")
    return reader


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsmoothError as error:
        sys.exit(f"{error}")
