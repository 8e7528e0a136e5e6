"""Checkpoints to which every process adds its own shards, through torch.distributed.checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path, PurePath
from typing import IO, Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.serialization import _get_layout

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import LARGEST, below, open_file, read_json
from unsmooth.training.checkpoint import Checkpoints, size_of
from unsmooth.training.data.pickles import Unpickler
from unsmooth.training.snapshot import check_fits, own_prefix, places, settle, snapshot
from unsmooth.training.step import Step
from unsmooth.weights import check_unpacked

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


# What torch describes a sharded checkpoint with: a pickle, which could name anything.
_DESCRIPTIONS: dict[tuple[str, str], Any] = {
    **{(kind.__module__, kind.__name__): kind for kind in (Metadata, MetadataIndex, StorageMeta, _StorageInfo)},
    **{(kind.__module__, kind.__name__): kind for kind in (TensorStorageMetadata, TensorProperties)},
    **{(kind.__module__, kind.__name__): kind for kind in (ChunkStorageMetadata, _MEM_FORMAT_ENCODING)},
    **{("pathlib", name): PurePath for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")},
    **{("torch", str(kind)[6:]): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)},
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    ("collections", "OrderedDict"): dict,
}


class _Reader(FileSystemReader):
    """Reads the shards in a folder: tensors alone, from files below it, none of which is packed."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What `FileSystemReader` reads, without running what its pickle names."""
        folder = Path(self.path)
        with open_file(folder / ".metadata") as file:
            found = Unpickler(BytesIO(file.read(LARGEST)), _DESCRIPTIONS).load()
        for place in found.storage_data.values():
            if place.transform_descriptors:
                raise expected("shards as torch writes them", "others", "an earlier one")
            open_file(below(folder, place.relative_path)).close()
        found.storage_meta = StorageMeta(load_id=self.load_id)
        return found  # type: ignore[no-any-return]

    def _slice_file(self, file: Any, sinfo: _StorageInfo) -> IO[bytes]:
        size = os.fstat(file.fileno()).st_size
        if not 0 <= sinfo.offset <= sinfo.offset + sinfo.length <= size:
            raise expected(f"tensors within the {size:,} bytes of {sinfo.relative_path}", "others", "an earlier one")
        file.seek(sinfo.offset)
        part = BytesIO(file.read(sinfo.length))
        check_unpacked(part, Path(self.path) / sinfo.relative_path)
        part.seek(0)
        return part


def load_shards(step: Step, folder: Path) -> dict[str, Any]:
    """Read a checkpoint of `save_shards` into the run, on any number of processes; returns what was said about it."""
    mine = places(step)
    filled, about = read_shards(mine, folder, alone=step.place.ranks == 1)
    settle(step, {name: mine[name] for name in filled if name.startswith(own_prefix(step))})
    return about


def read_shards(mine: Mapping[str, Tensor], folder: Path, *, alone: bool) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Fill tensors by name; returns which of them the checkpoint has, and what was said about it."""
    reader = _Reader(folder)
    try:
        sizes = {name: kept.size for name, kept in reader.read_metadata().state_dict_metadata.items()}  # type: ignore[union-attr]
        check_fits(mine, {name: torch.empty(size, device="meta") for name, size in sizes.items()})
        wanted: dict[str, Any] = {name: place for name, place in mine.items() if name in sizes}
        with warnings.catch_warnings():
            # One process alone: as it is meant.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(wanted, storage_reader=reader, no_dist=alone)
        return tuple(wanted), read_json(folder / _ABOUT)
    except (Exception, CheckpointException) as error:  # of a broken one any may come
        cause = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        if isinstance(cause, UnsmoothError):
            raise cause from None
        got = " ".join(str(cause).split())[:200] or type(cause).__name__
        raise expected(f"a whole checkpoint in {folder}", got, "an earlier one") from None


def _first_cause(error: CheckpointException) -> Exception:
    """The disk's own words, where the disk is to blame."""
    for cause, _ in error.failures.values():
        if isinstance(cause, OSError | UnsmoothError):
            return cause
    return expected("every process to save its shards", str(error).splitlines()[0], "--resume")
