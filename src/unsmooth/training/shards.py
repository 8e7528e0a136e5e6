"""Checkpoints to which every process adds its own shards, through torch.distributed.checkpoint."""

from __future__ import annotations

import json
import shutil
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
from unsmooth.files import read_json
from unsmooth.training.checkpoint import Checkpoints, size_of
from unsmooth.training.snapshot import check_fits, own_prefix, places, settle, snapshot
from unsmooth.training.step import Step

_ABOUT = "about.json"


def save_shards(step: Step, checkpoints: Checkpoints, number: int, about: dict[str, Any]) -> None:
    """Write the checkpoint of step `number`; every process calls this, and the first moves it into its place."""
    state: dict[str, Any] = snapshot(step)
    draft = _agreed_draft(step, checkpoints, number, size_of(state))
    try:
        with checkpoints.told(number, 0):
            try:
                save(state, storage_writer=FileSystemWriter(draft))
            except CheckpointException as error:  # on every process, wherever it came up
                raise _first_cause(error) from None
            if step.place.first:
                (draft / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
                checkpoints.save_folder(number, draft)
    finally:
        if step.place.first:
            shutil.rmtree(draft, ignore_errors=True)


def _agreed_draft(step: Step, checkpoints: Checkpoints, number: int, size: int) -> Path:
    """A folder that the first process has found room for; where it has not, all of them say so."""
    said: list[str] = ["", ""]
    if step.place.first:
        try:
            with checkpoints.told(number, size):
                said[0] = str(checkpoints.draft())
        except UnsmoothError as error:
            said[1] = str(error)
    dist.broadcast_object_list(said, src=0)
    if said[1]:
        raise UnsmoothError(said[1])
    return Path(said[0])


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
    return read_json(folder / _ABOUT)


def _first_cause(error: CheckpointException) -> Exception:
    """The disk's own words, where the disk is to blame."""
    for cause, _ in error.failures.values():
        if isinstance(cause, OSError | UnsmoothError):
            return cause
    return expected("every process to save its shards", str(error).splitlines()[0], "--resume")
