"""Checkpoints that are there whole or not at all, and are known to be whole when read.

One file where every process holds the whole model; where the model is sharded a folder to which every process adds its
own shards, through torch.distributed.checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
from unsmooth.files import LARGEST, below, open_file, read_json, sync_file, sync_folder, sync_tree, write_whole
from unsmooth.training.data.digests import file_digest
from unsmooth.training.data.pickles import Unpickler
from unsmooth.training.state import State, check_fits, own_prefix, places, restore, settle, snapshot
from unsmooth.training.step import Step
from unsmooth.weights import check_pickle, check_unpacked


def save_checkpoint(step: Step, checkpoints: Checkpoints, number: int, about: dict[str, Any]) -> None:
    """Write the checkpoint of step `number`; every process calls this, and all of them fail where one does.

    Args:
        step: The run.
        checkpoints: Where to.
        number: Steps that were taken.
        about: Plain values to keep with it.
    """
    said = ""
    try:
        if step.sharded:
            save_shards(step, checkpoints, number, about)
        else:
            state = _with_others(step, snapshot(step))
            if step.place.first:
                checkpoints.save(number, {"state": state, "about": about})
    except UnsmoothError as error:
        # Its words, not the error: that would hold on to this frame, and to the process group with it.
        said = str(error)
    if (words := step.place.agree(said or None)) is not None:
        raise UnsmoothError(words)


def load_checkpoint(step: Step, found: Checkpoint) -> dict[str, Any]:
    """Write a checkpoint into the run; returns what was kept with it."""
    if found.sharded:
        return load_shards(step, found.path)
    content = found.read()
    restore(step, content["state"])
    about: dict[str, Any] = content["about"]
    return about


def _with_others(step: Step, state: State) -> State:
    """What belongs to other processes alone is added on the first."""
    place = step.place
    if place.ranks == 1:
        return state
    own = {name: value.cpu() for name, value in state.items() if name.startswith(own_prefix(step))}
    gathered: list[dict[str, Tensor]] | None = [{} for _ in range(place.ranks)] if place.first else None
    dist.gather_object(own, gathered)
    return {**state, **{name: value for one in gathered or () for name, value in one.items()}}


_NAME = re.compile(r"step-(\d{8,})\.(pt|shards)")
_INDEX = "index.json"


@dataclass(frozen=True)
class Checkpoint:
    """One that is whole.

    Args:
        step: Steps that were taken.
        path: A file, or a folder of shards where several processes wrote their own parts.
    """

    step: int
    path: Path

    @property
    def sharded(self) -> bool:
        """Whether it is a folder of shards."""
        return self.path.is_dir()

    def read(self) -> dict[str, Any]:
        """What was saved, on the CPU; a file only."""
        check_pickle(self.path)
        try:
            # Mapped, not read: what is copied out of it is in memory once, not twice.
            found = torch.load(self.path, weights_only=True, map_location="cpu", mmap=True)
            about, state = found["about"], found["state"]
            if not isinstance(about, dict) or not all(isinstance(one, Tensor) for one in state.values()):
                raise TypeError("other things than tensors")
        except Exception as error:  # a broken pickle may raise anything
            got = " ".join(str(error).split())[:200] or type(error).__name__
            raise expected(f"a whole checkpoint in {self.path}", got, "an earlier one") from None
        return {"about": about, "state": state}


class Checkpoints:
    """The newest checkpoints of a run, in a folder of their own.

    Each is written beside its place, flushed to the disk and moved there. Before it is moved its SHA-256 is in
    `index.json`, so that one which the disk garbled is passed over for the one before.

    Args:
        folder: Where they are.
        keep: How many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self.passed_over: list[str] = []
        """Names of those that `latest` found garbled."""

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write `state` (nested dicts of tensors and plain values) as the checkpoint of `step`; the oldest goes."""
        path = self.folder / f"step-{step:08d}.pt"
        with self.writing(step, size_of(state)):
            draft = self.draft()
            try:
                digest = write_hashed(draft, dict(state))
                self._enter(path.name, _Entry(bytes_of(draft), digest))
                os.replace(draft, path)
                sync_folder(self.folder)
            finally:
                draft.unlink(missing_ok=True)
        self.remove_old()
        return path

    def save_folder(self, step: int, draft: Path) -> Path:
        """Take a filled folder as the checkpoint of `step`."""
        path = self.folder / f"step-{step:08d}.shards"
        with self.writing(step, 0):
            sync_tree(draft)
            self._enter(path.name, _Entry(bytes_of(draft), digest_of(draft)))
            shutil.rmtree(path, ignore_errors=True)  # of the same step: one that was passed over
            os.replace(draft, path)
            sync_folder(self.folder)
        self.remove_old()
        return path

    def draft(self) -> Path:
        """A new name beside the checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f".{secrets.token_hex(8)}.tmp"

    def latest(self) -> Checkpoint | None:
        """The newest that is whole; None where there is none. Those that are not are named in `passed_over`."""
        entries = self._entries()
        self.passed_over = []
        for name in reversed(self.names()):
            path = self.folder / name
            if _is_whole(path, entries.get(name)):
                return Checkpoint(_step(name), path)
            self.passed_over.append(name)
        return None

    def names(self) -> list[str]:
        """Names of files and folders, oldest first."""
        found = [path.name for path in self.folder.glob("step-*") if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda name: (_step(name), name))

    def remove_old(self) -> None:
        """Remove all but the newest."""
        for old in self.names()[: -self.keep]:
            path = self.folder / old
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def writing(self, step: int, size: int) -> Iterator[None]:
        """While `size` bytes are written: what goes wrong with the disk becomes an error in one line."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _check_space(self.folder, size)
            yield
        except (OSError, UnsmoothError) as error:
            freed = f"freeing {size / 2**20:,.0f} MiB" if size >= 2**20 else "freeing space"
            again = "`unsmooth train --resume` or the arena's command again"
            hint = f"{freed}, then {again}; earlier checkpoints are whole"
            raise expected(f"room to save step {step} in {self.folder}", _reason(error), hint) from None

    def _enter(self, name: str, entry: _Entry) -> None:
        entries = {known: asdict(one) for known, one in {**self._entries(), name: entry}.items()}
        sync_file(write_whole(self.folder / _INDEX, json.dumps(entries, indent=1)))

    def _entries(self) -> dict[str, _Entry]:
        try:
            known = read_json(self.folder / _INDEX, dict[str, _Entry])
        except (OSError, UnsmoothError):
            return {}
        return {name: entry for name, entry in known.items() if name in self.names()}


@dataclass(frozen=True)
class _Entry:
    """What `index.json` says of a checkpoint."""

    bytes: int
    sha256: str


def _is_whole(path: Path, entry: _Entry | None) -> bool:
    try:
        if entry is not None:
            # The size first: what was blown up is not read through.
            return bytes_of(path) == entry.bytes and digest_of(path) == entry.sha256
        if path.is_dir():
            return False
        # The index was lost: torch's files are zip archives, which have checksums of their own.
        check_pickle(path)
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:  # a broken archive may raise anything
        return False


def size_of(state: Any) -> int:
    """Bytes of all tensors in nested dicts and lists.

    >>> size_of({"a": torch.zeros(3), "b": [torch.zeros(2, dtype=torch.int64), "word"]})
    28
    """
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(size_of(item) for item in state.values())
    return sum(size_of(item) for item in state) if isinstance(state, list | tuple) else 0


def _step(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None, "names come from `names`"
    return int(match[1])


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        size = f"{free / 2**20:,.0f} MiB free, {needed / 2**20:,.0f} needed"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({size})")


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


class _Hashed:
    """A file that hashes what goes through it, so that nothing is held in memory or read again."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        """Torch turns errors of its file into others of its own: the first is kept."""
        try:
            written = self.file.write(content)
        except OSError as error:
            self.error = self.error or error
            raise
        self.hash.update(content)
        return written

    def flush(self) -> None:
        self.file.flush()


def write_hashed(draft: Path, state: dict[str, Any]) -> str:
    """`torch.save` to a file that is on the disk when this returns; returns its SHA-256."""
    with draft.open("wb") as file:
        hashed = _Hashed(file)
        try:
            torch.save(state, hashed)  # type: ignore[arg-type]
        except Exception:
            if hashed.error is not None:
                raise hashed.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return hashed.hash.hexdigest()


def bytes_of(path: Path) -> int:
    """Size of a file, or of all files of a folder."""
    return sum(file.stat().st_size for file in _files(path)) if path.is_dir() else path.stat().st_size


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of the names and digests of a folder's files."""
    if path.is_dir():
        lines = [f"{file.relative_to(path).as_posix()} {digest_of(file)}\n" for file in _files(path)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    return file_digest(path)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


_ABOUT = "about.json"


def save_shards(step: Step, checkpoints: Checkpoints, number: int, about: dict[str, Any]) -> None:
    """Write the checkpoint of step `number`; every process calls this, and the first moves it into its place."""
    state: dict[str, Any] = snapshot(step)
    draft = _agreed_draft(step, checkpoints, number, size_of(state))
    try:
        with checkpoints.writing(number, 0):
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
            with checkpoints.writing(number, size):
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
