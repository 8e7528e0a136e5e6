"""Files that appear whole or not at all, and what goes into them."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from unsmooth.errors import UnsmoothError, expected

T = TypeVar("T")


def write_whole(path: Path, content: bytes | str) -> Path:
    """Write beside `path` and move into place: a reader sees the old file or the new one, never half of it."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    # Not tempfile: its files are private to the user, and results are for sharing.
    draft = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(data)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _not_writable(f"a place to write {path.name!r}", path.parent, error) from None
    return path


def check_writable(folder: Path) -> None:
    """Create `folder` and try to write there, before any work is done for it."""
    probe = folder / f".{secrets.token_hex(8)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_writable("a writable folder", folder, error) from None


@contextmanager
def whole_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A draft to fill beside `folder`, moved into its place at the end: it appears whole or not at all.

    Args:
        folder: Must not exist, or be empty.
        replace: Put the draft in the place of one that is not empty; until then that one stays as it is.
    """
    folder = folder.resolve()
    draft = folder.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        draft.mkdir(parents=True)
        yield draft
        if replace and folder.exists():
            _swap(draft, folder)
        else:
            if folder.is_dir():
                folder.rmdir()  # not every system moves a folder onto an empty one
            os.replace(draft, folder)
    except OSError as error:
        raise _not_writable(f"a place to write {folder.name!r}", folder.parent, error) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: Path, folder: Path) -> None:
    old = folder.parent / f".{secrets.token_hex(8)}.old"
    os.replace(folder, old)
    try:
        os.replace(draft, folder)
    except OSError:
        os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def check_room(folder: Path) -> None:
    """Refuse a place where `whole_folder` could make no folder; leaves nothing behind, not even the folder."""
    place = folder.resolve().parent
    while not place.exists():
        place = place.parent
    probe = place / f".{secrets.token_hex(8)}.tmp"
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_writable("a writable folder", folder, error) from None


def finite(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


@dataclass(frozen=True)
class Saved:
    """A kind of result on disk, and how its errors speak of it.

    Args:
        kind: What it is, such as "scan"; its file is named so.
        writer: The method that writes it.
        verb: The command that makes it.
        again: What to try where it is broken.
        form: The format that is read.
    """

    kind: str
    writer: str
    verb: str
    again: str
    form: int

    def read(self, folder: str | Path, parse: Callable[[dict[str, Any]], T]) -> T:
        """What `parse` makes of the file in `folder`, or of the file itself."""
        file = f"{self.kind}.json"
        path = Path(folder)
        path = path / file if path.is_dir() else path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.get("format") != self.form:
                hint = "the unsmooth version that wrote it"
                raise expected(f"{self.kind} format {self.form}", content.get("format"), hint)
            return parse(content)
        except UnsmoothError:
            raise
        except OSError:
            raise expected(
                f"a folder that {self.writer} wrote", repr(str(folder)), f"`unsmooth {self.verb} … --out DIR` first"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise expected(f"a whole {file} in {folder}", type(error).__name__, self.again) from None


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def is_of_the_disk(error: Exception) -> bool:
    """Whether an error comes of a disk that is full, over its quota, read-only or broken.

    >>> is_of_the_disk(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), is_of_the_disk(ValueError("no"))
    (True, False)
    """
    # Told by its words: whoever saves puts the error in a line of its own, which is what other processes get.
    return any(os.strerror(number) in str(error) for number in _OF_THE_DISK)


def _not_writable(what: str, folder: Path, error: OSError) -> UnsmoothError:
    return expected(what, f"{error.strerror or type(error).__name__}: {folder}", "another folder")
