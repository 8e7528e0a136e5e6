"""Checkpoints to which every process adds its own shards, through torch.distributed.checkpoint."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from unsmooth.errors import UnsmoothError, expected
from unsmooth.training.checkpoint import Checkpoints, size_of
from unsmooth.training.snapshot import check_fits, own_prefix, places, settle, snapshot
from unsmooth.training.step import Step

_ABOUT = "about.json"


def save_shards(step: Step, checkpoints: Checkpoints, number: int, about: dict[str, Any]) -> None:
    """Write the checkpoint of step `number`; every process calls this, and the first moves it into its place."""
    draft = _same_everywhere(checkpoints.draft() if step.place.first else None)
    state: dict[str, Any] = snapshot(step)
    with checkpoints.told(number, size_of(state)):
        try:
            save(state, storage_writer=FileSystemWriter(draft))
        except CheckpointException as error:
            raise _first_cause(error) from None
    if step.place.first:
        (draft / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        checkpoints.save_folder(number, draft)


def load_shards(step: Step, folder: Path) -> dict[str, Any]:
    """Read a checkpoint of `save_shards` into the run, on any number of processes; returns what was said about it."""
    mine = places(step)
    reader = FileSystemReader(folder)
    sizes = {name: kept.size for name, kept in reader.read_metadata().state_dict_metadata.items()}  # type: ignore[union-attr]
    saved = {name: torch.empty(size, device="meta") for name, size in sizes.items()}
    check_fits(mine, saved)
    wanted: dict[str, Any] = {name: place for name, place in mine.items() if name in saved}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process alone: as it is meant
        load(wanted, storage_reader=reader, no_dist=step.place.ranks == 1)
    settle(step, {name: value for name, value in wanted.items() if name.startswith(own_prefix(step))})
    about: dict[str, Any] = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    return about


def _same_everywhere(path: Path | None) -> Path:
    box = [None if path is None else str(path)]
    dist.broadcast_object_list(box, src=0)
    assert box[0] is not None, "the first process named it"
    return Path(box[0])


def _first_cause(error: CheckpointException) -> Exception:
    """The disk's own words, where the disk is to blame."""
    for cause, _ in error.failures.values():
        if isinstance(cause, OSError | UnsmoothError):
            return cause
    return expected("every process to save its shards", str(error).splitlines()[0], "--resume")
