"""What has to be on the disk when a function returns, and how it is known again."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import IO, Any

import torch

from unsmooth.training.data.digests import file_digest


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


def sync_tree(folder: Path) -> None:
    """Have the disk hold every file of a folder before the folder is moved."""
    for path in (*folder.rglob("*"), folder):
        (sync_folder if path.is_dir() else sync_file)(path)


def sync_file(path: Path) -> None:
    """Have the disk hold a file."""
    _synced(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Have the disk hold the names in a folder; a system that cannot open folders is left alone."""
    if hasattr(os, "O_DIRECTORY"):
        _synced(folder, os.O_RDONLY | os.O_DIRECTORY)


def _synced(path: Path, flags: int) -> None:
    number = os.open(path, flags)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # some network disks have no such thing
            raise
    finally:
        os.close(number)
