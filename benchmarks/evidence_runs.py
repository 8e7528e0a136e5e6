"""Train everything that claims still wait for, studies side by side on one GPU, in pieces where minutes are few.

    python -m benchmarks.evidence_runs                      # every study that is not complete, at scale paper
    python -m benchmarks.evidence_runs --minutes 9 --mps    # exit code 3 while something is left: call it again
    python -m benchmarks.evidence_runs less_data bases      # these alone

Each seed of a study is a process of its own, `unsmooth evidence train`: building and compiling one seed's models keeps a
processor busy while another one's steps keep the GPU busy. ``--mps`` has NVIDIA's Multi-Process Service run their
kernels beside each other, not in turns; it is started for the time of this command.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from unsmooth.cli.app import EXIT_NOT_FINISHED
from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence import STUDIES, Bench
from unsmooth.evidence.scale import known_scale

CONTROL = "nvidia-cuda-mps-control"
Lane = tuple[str, int]
"""A study and a seed: what one process trains."""


def main(words: Sequence[str] | None = None) -> int:
    """Start them, wait for them, say how each ended."""
    given = _reader().parse_args(words)
    bench = Bench(scale=known_scale(given.scale), out=given.out, runs=given.runs)
    wanted = [STUDIES[name].name for name in given.studies] or list(STUDIES)
    left = [lane for name in wanted for lane in missing(name, bench)]
    with multi_process_service() if given.mps else nullcontext():
        codes = train_side_by_side(left, bench, given.minutes)
    for (name, seed), code in codes.items():
        print(f"{name}, seed {seed}: {missing(name, bench).get((name, seed), 0)} runs left, exit code {code}")
    worst = [code for code in codes.values() if code not in (0, EXIT_NOT_FINISHED)]
    return worst[0] if worst else EXIT_NOT_FINISHED if any(codes.values()) else 0


def missing(name: str, bench: Bench) -> Counter[Lane]:
    """How many runs of a study are not there yet, by seed."""
    study = STUDIES[name]
    there = {(run.variant, run.seed) for run in bench.store.study(name, bench.scale)}
    wanted = ((variant, seed) for seed in study.seeds(bench) for variant in study.configs(bench))
    return Counter((name, seed) for variant, seed in wanted if (variant, seed) not in there)


def train_side_by_side(lanes: Sequence[Lane], bench: Bench, minutes: float | None) -> dict[Lane, int]:
    """A process for each; what it says goes into a file beside its runs."""
    bench.runs.mkdir(parents=True, exist_ok=True)
    started: dict[Lane, subprocess.Popen[bytes]] = {}
    try:
        for name, seed in lanes:
            words = _words(name, seed, bench, len(lanes), minutes)
            with (bench.runs / f"{name}-{seed}.log").open("ab") as said:
                started[name, seed] = subprocess.Popen(words, stdout=said, stderr=said)
        return {lane: process.wait() for lane, process in started.items()}
    finally:
        for process in started.values():
            if process.poll() is None:
                process.terminate()


def _words(name: str, seed: int, bench: Bench, sharing: int, minutes: float | None) -> list[str]:
    words = [sys.executable, "-m", "unsmooth", "evidence", "train", name, "--seed", str(seed), "--scale", bench.scale]
    words += ["--out", str(bench.out), "--runs", str(bench.runs), "--sharing", str(sharing)]
    return words if minutes is None else [*words, "--minutes", f"{minutes:g}"]


@contextmanager
def multi_process_service() -> Iterator[None]:
    """NVIDIA's Multi-Process Service of our own, over when this is over."""
    if shutil.which(CONTROL) is None:
        raise expected(f"{CONTROL} for --mps", "no such command", "the same without --mps")
    with tempfile.TemporaryDirectory() as folder:  # its sockets want short paths
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
        subprocess.run([CONTROL, "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run([CONTROL], input=b"quit\n", check=False)


def _reader() -> argparse.ArgumentParser:
    reader = argparse.ArgumentParser(description="Train what claims still wait for.", allow_abbrev=False)
    reader.add_argument("studies", nargs="*", metavar="STUDY", help="of `unsmooth ls studies`; by default all")
    reader.add_argument("--scale", default="paper")
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
