"""Runs over two processes, each a job that is written down, several to a start of the processes."""

from __future__ import annotations

import json
import os
import shutil
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from tests.training.tiny_runs import tiny
from unsmooth.networks.config import DecoderConfig, EncoderConfig
from unsmooth.training import Config, Progress, resume, train
from unsmooth.training.config import DataConfig, OptimiserConfig
from unsmooth.training.data import locate
from unsmooth.training.plain import from_plain, override, to_plain
from unsmooth.training.tasks import ImageTask

RANKS = 2


class StopError(Exception):
    """Somebody pulled the plug, on all processes at once."""


@dataclass(frozen=True)
class Job:
    """One thing to do.

    Args:
        out: Folder of the run.
        config: Its settings as plain data; None takes up what is there.
        stop: Step at whose log line to be interrupted; None goes on to the end.
        poison: Micro-batch whose loss is NaN, on the second process only; None for none.
        full: Whether the disk has no room left, as the first process sees it.
    """

    out: str
    config: dict[str, Any] | None = None
    stop: int | None = None
    poison: int | None = None
    full: bool = False


def job(out: Path, config: Config | None, **more: Any) -> Job:
    """With the settings as plain data."""
    return Job(str(out), None if config is None else to_plain(config), **more)


def in_processes(folder: Path, jobs: Sequence[Job]) -> list[list[str]]:
    """Do all `jobs` in order on two processes; what each process said of each, "" where nothing went wrong."""
    torch.multiprocessing.spawn(_worker, (str(folder), [asdict(one) for one in jobs]), nprocs=RANKS)
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return [list(words) for words in zip(*said, strict=True)]


def _worker(rank: int, folder: str, jobs: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS, timeout=timedelta(seconds=120)
    )
    said = []
    for one in jobs:
        try:
            carry_out(Job(**one), rank)
            said.append("")
        except StopError:
            said.append("stopped")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said.append(f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})")
    Path(folder, f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()
    # On a busy machine gloo's threads may outlive the interpreter, which then aborts after all is said.
    os._exit(0)


def carry_out(one: Job, rank: int = 0) -> None:
    """Do a job in this process."""

    def tell(progress: Progress) -> None:
        if one.stop is not None and progress.step >= one.stop:
            raise StopError

    with _short_texts(), _poisoned(one.poison if rank == 1 else None), _full_disk(one.full and rank == 0):
        if one.config is None:
            resume(one.out, tell=tell)
        else:
            train(from_plain(Config, one.config), one.out, tell=tell)


@contextmanager
def _poisoned(bad: int | None) -> Iterator[None]:
    """The loss of one micro-batch of images is NaN, and its gradient is not: only the loss of this process tells."""
    real = ImageTask.loss

    def loss(task: ImageTask, model: Any, batch: Tensor) -> Tensor:
        found = real(task, model, batch)
        return found + (found.detach() * float("nan") if int(batch) == bad else 0.0)

    if bad is not None:
        ImageTask.loss = loss  # type: ignore[method-assign]
    try:
        yield
    finally:
        ImageTask.loss = real  # type: ignore[method-assign]


@contextmanager
def _full_disk(full: bool) -> Iterator[None]:
    real = shutil.disk_usage
    if full:
        shutil.disk_usage = lambda _: type("Usage", (), {"free": 0})()  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        shutil.disk_usage = real


@contextmanager
def _short_texts() -> Iterator[None]:
    """Made-up texts of ten thousand tokens: a million take seconds, in every run of every process."""
    real = locate.synthetic_text
    locate.synthetic_text = lambda tokens, seed, **more: real(10_000, seed, **more)
    try:
        yield
    finally:
        locate.synthetic_text = real


def configs(**changes: Any) -> dict[str, Config]:
    """An image, a masked and a language run, with everything random on; in float64."""
    images = tiny(engine__precision="float64", augment__rand="rand-m9-n2-mstd1.0", augment__erase=0.25)
    text = DataConfig(name="synthetic", test_limit=4)
    stack: dict[str, Any] = {"depth": 2, "dim": 8, "heads": 2, "hidden": 16, "drop_path": 0.2, "dropout": 0.1}
    encoder = EncoderConfig(vocabulary=261, length=16, **stack)
    decoder = DecoderConfig(vocabulary=256, length=8, memory=8, positions="relative", **stack)
    texts = replace(images, augment=None, data=text, optimiser=OptimiserConfig(lr=1e-2, clip=1.0), ema=0.0)
    found = {
        "images": images,
        "masked": replace(texts, task="masked", network=encoder),
        "language": replace(texts, task="language", network=decoder),
    }
    return {
        name: override(one, {key.replace("__", "."): value for key, value in changes.items()})
        for name, one in found.items()
    }


def farthest(first: Path, second: Path) -> float:
    """The largest difference between final weights."""
    differences = []
    for file in sorted(first.glob("final*/*.safetensors")):
        mine, other = load_file(file), load_file(second / file.relative_to(first))
        assert mine.keys() == other.keys()
        differences += [float((value.double() - other[name].double()).abs().max()) for name, value in mine.items()]
    assert differences, f"no final weights in {first}"
    return max(differences)


def losses(folder: Path) -> list[float]:
    """Training and evaluation losses, in the order of the log."""
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in found if "loss" in line]
