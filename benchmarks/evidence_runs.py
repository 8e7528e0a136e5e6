"""Train everything that claims still wait for, studies side by side on one GPU, in pieces where minutes are few.

    python -m benchmarks.evidence_runs                      # every study that is not complete, at scale full
    python -m benchmarks.evidence_runs --minutes 9 --mps    # exit code 3 while something is left: call it again
    python -m benchmarks.evidence_runs less_data bases      # these alone

Up to four runs of a seed are a process of their own, `unsmooth evidence train`: building and compiling some models
keeps a processor busy while the steps of others keep the GPU busy. ``--mps`` has NVIDIA's Multi-Process Service run
their kernels beside each other, not in turns; it is started for the time of this command.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.multi_process_service import multi_process_service
from unsmooth.cli.app import EXIT_NOT_FINISHED
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import STUDIES, Bench
from unsmooth.evidence.scale import known_scale
from unsmooth.training.driving import AT_ONCE


@dataclass(frozen=True)
class Lane:
    """What one process trains."""

    study: str
    seed: int
    variants: tuple[str, ...]

    def __str__(self) -> str:
        return "-".join([self.study, f"seed{self.seed}", *self.variants])


def main(words: Sequence[str] | None = None) -> int:
    """Start them, wait for them, say how each ended."""
    given = _reader().parse_args(words)
    bench = Bench(scale=known_scale(given.scale), out=given.out, runs=given.runs)
    wanted = [STUDIES[name].name for name in given.studies] or list(STUDIES)
    left = [lane for name in wanted for lane in missing(name, bench)]
    with multi_process_service() if given.mps else nullcontext():
        codes = train_side_by_side(left, bench, given.minutes)
    for lane, code in codes.items():
        print(f"{lane}: exit code {code}")
    worst = [code for code in codes.values() if code not in (0, EXIT_NOT_FINISHED)]
    return worst[0] if worst else EXIT_NOT_FINISHED if any(codes.values()) else 0


def missing(name: str, bench: Bench) -> Iterator[Lane]:
    """What is not there yet of a study, in pieces that share a GPU well."""
    study = STUDIES[name]
    there = {(run.variant, run.seed) for run in bench.store.study(name, bench.scale)}
    for seed in study.seeds(bench):
        left = [variant for variant in study.configs(bench) if (variant, seed) not in there]
        pieces = math.ceil(len(left) / AT_ONCE)
        for piece in range(pieces):
            yield Lane(name, seed, tuple(left[piece * len(left) // pieces : (piece + 1) * len(left) // pieces]))


def train_side_by_side(lanes: Sequence[Lane], bench: Bench, minutes: float | None) -> dict[Lane, int]:
    """A process for each; what it says goes into a file beside its runs."""
    bench.runs.mkdir(parents=True, exist_ok=True)
    # Processes that each take all cores to build their models keep one another from it.
    threads = str(max(1, (os.cpu_count() or 1) // max(1, len(lanes))))
    environment = {"OMP_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": threads, **os.environ}
    started: dict[Lane, subprocess.Popen[bytes]] = {}
    try:
        for lane in lanes:
            words = _words(lane, bench, len(lanes), minutes)
            with (bench.runs / f"{lane}.log").open("ab") as said:
                started[lane] = subprocess.Popen(words, stdout=said, stderr=said, env=environment)
        return {lane: process.wait() for lane, process in started.items()}
    finally:
        for process in started.values():
            if process.poll() is None:
                process.terminate()


def _words(lane: Lane, bench: Bench, sharing: int, minutes: float | None) -> list[str]:
    words = [sys.executable, "-m", "unsmooth", "evidence", "train", lane.study, "--seed", str(lane.seed)]
    words += [word for variant in lane.variants for word in ("--variant", variant)]
    words += ["--scale", bench.scale, "--out", str(bench.out), "--runs", str(bench.runs), "--sharing", str(sharing)]
    return words if minutes is None else [*words, "--minutes", f"{minutes:g}"]


def _reader() -> argparse.ArgumentParser:
    reader = argparse.ArgumentParser(description="Train what claims still wait for.", allow_abbrev=False)
    reader.add_argument("studies", nargs="*", metavar="STUDY", help="of `unsmooth ls studies`; by default all")
    reader.add_argument("--scale", default="full")
    reader.add_argument("--minutes", type=float, help="stop after so many; the same command goes on from there")
    reader.add_argument("--mps", action="store_true", help="run kernels of several processes beside each other")
    reader.add_argument("--out", type=Path, default=Path("evidence"))
    reader.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    return reader


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnsmoothError as error:
        sys.exit(f"{error}")
