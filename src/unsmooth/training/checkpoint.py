"""Checkpoints that are there whole or not at all, and are known to be whole when read."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import read_json, write_whole
from unsmooth.training.durable import bytes_of, digest_of, sync_file, sync_folder, sync_tree, write_hashed
from unsmooth.weights import check_pickle

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
        with self.told(step, size_of(state)):
            draft = self.draft()
            try:
                digest = write_hashed(draft, dict(state))
                self._enter(path.name, _Entry(bytes_of(draft), digest))
                os.replace(draft, path)
                sync_folder(self.folder)
            finally:
                draft.unlink(missing_ok=True)
        self.let_go()
        return path

    def save_folder(self, step: int, draft: Path) -> Path:
        """Take a filled folder as the checkpoint of `step`."""
        path = self.folder / f"step-{step:08d}.shards"
        with self.told(step, 0):
            sync_tree(draft)
            self._enter(path.name, _Entry(bytes_of(draft), digest_of(draft)))
            shutil.rmtree(path, ignore_errors=True)  # of the same step: one that was passed over
            os.replace(draft, path)
            sync_folder(self.folder)
        self.let_go()
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

    def let_go(self) -> None:
        """Remove all but the newest."""
        for old in self.names()[: -self.keep]:
            path = self.folder / old
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def told(self, step: int, size: int) -> Iterator[None]:
        """What goes wrong while `size` bytes are written, in one line."""
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
