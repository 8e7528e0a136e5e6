"""Files on disk: ours appear whole or not at all, and those of strangers are read within bounds."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, overload

from unsmooth.errors import UnsmoothError, expected
from unsmooth.schema import parse

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

LARGEST = 32 << 20
"""Bytes of a text that is read whole."""
# Once parsed a value takes up to 110 bytes: with the text that stays below 256 MiB.
_MOST_VALUES = 1 << 20
_DEEPEST = 64
_AGAIN = "another copy of it"
_LONGEST_NAME = 200
DRAFT = re.compile(r"\.[0-9a-f]{16}\.(tmp|old)")
"""Name of what is not yet in its place, or on its way out of it."""


def open_file(path: Path) -> IO[bytes]:
    """A regular file, opened to be read; a link is followed to one.

    A pipe would have its reader wait for ever, and a device has no end.

    Raises:
        FileNotFoundError: It is not there: what that means is for the caller to say.
        UnsmoothError: It may not be read, or is a folder, a pipe, a device or a socket.
    """
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from None
    except OSError as error:
        raise expected(f"a readable file {str(path)!r}", error.strerror or type(error).__name__, _AGAIN) from None
    kind = os.fstat(number).st_mode
    if not stat.S_ISREG(kind):
        os.close(number)
        got = "a folder" if stat.S_ISDIR(kind) else "a pipe" if stat.S_ISFIFO(kind) else "a device"
        raise expected(f"a regular file at {str(path)!r}", got, _AGAIN)
    try:
        os.lseek(number, 0, os.SEEK_END)  # what the system makes up, as a process's memory, is regular and has no end
        os.lseek(number, 0, os.SEEK_SET)
    except OSError as error:
        os.close(number)
        raise expected(f"a readable file {str(path)!r}", error.strerror or type(error).__name__, _AGAIN) from None
    return os.fdopen(number, "rb")


def read_text(path: Path, most: int = LARGEST, errors: str = "strict") -> str:
    """All of a text in UTF-8 of at most `most` bytes, also once unpacked from ``.gz``; raises as `open_file` does."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            content = (
                gzip.GzipFile(fileobj=file).read(most + 1) if path.suffix == ".gz" else file.read(min(size, most) + 1)
            )
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise expected(f"a whole gzip file {str(path)!r}", str(error), _AGAIN) from None
    if max(size, len(content)) > most:
        raise expected(f"at most {most:,} bytes in {str(path)!r}", "more", _AGAIN)
    try:
        return content.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise expected(f"text in UTF-8 in {str(path)!r}", f"other bytes ({error.reason})", _AGAIN) from None


# What is drawn by another program, as PostScript is, is no image here.
_IMAGES = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
_PIXELS, _PIXELS_A_BYTE = 1 << 24, 64


def open_image(path: Path) -> Image:
    """An image file in red, green and blue; of more than 16 million pixels, its size must be that of a picture.

    Raises:
        UnsmoothError: There is no such file, or what is wrong with it.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with open_file(path) as file, Image.open(file, formats=_IMAGES) as image:
            pixels, size = image.width * image.height, os.fstat(file.fileno()).st_size
            if pixels > _PIXELS + _PIXELS_A_BYTE * size:
                raise ValueError(f"{pixels:,} pixels in {size:,} bytes")
            return image.convert("RGB")
    except UnsmoothError:
        raise
    except Exception as error:  # of a broken image any may come
        said = "no image" if isinstance(error, UnidentifiedImageError) else " ".join(str(error).split())[:200]
        got = said or type(error).__name__
        raise expected(f"a whole image in {path}", got, "replacing that file") from None


class Careful:
    """A file for readers of archives, which take sizes from the archive: none is believed beyond a bound.

    Args:
        file: Opened to be read, perhaps packed.
        end: How far into it one may go; None for as far as it is long.
    """

    _MOST = 4 << 20

    def __init__(self, file: IO[bytes], end: int | None = None) -> None:
        self.file, self.end = file, end

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes, or all that are left, where that is not too many at once."""
        content = self.file.read(min(size, self._MOST + 1) if size >= 0 else self._MOST + 1)
        if len(content) > self._MOST:
            raise ValueError(f"more than {self._MOST:,} bytes at once")
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        """To another place."""
        if (whence == 0 and offset < 0) or (self.end is not None and offset > self.end):
            raise ValueError(f"a place of {offset:,} bytes")
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        """The place."""
        return self.file.tell()

    def seekable(self) -> bool:
        """Yes."""
        return True


def lines_of(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The lines of a file, none of which is longer than a text that is read whole."""
    while line := file.readline(LARGEST + 1):
        if len(line) > LARGEST:
            raise expected(f"lines of at most {LARGEST:,} bytes in {str(path)!r}", "a longer one", _AGAIN)
        yield line


def parse_json(text: str, where: object, *, constants: bool = False) -> Any:
    """What JSON says, within bounds of depth, numbers, and how many values there are.

    Args:
        text: The JSON.
        where: What it stands in, for the error.
        constants: Take NaN and Infinity, which our own files never have, and settings of others may.

    Raises:
        UnsmoothError: It is no JSON, or out of bounds.

    >>> parse_json('{"a": [1, 2.5]}', "a file")
    {'a': [1, 2.5]}
    >>> parse_json("[" * 100_000, "a file")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected at most 64 levels of JSON in a file but got more. Try another copy of it.
    """
    check_count(text, where)
    try:
        content = (_ANY if constants else _STRICT).decode(text)
        level = [content]
        for _ in range(_DEEPEST):
            inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
            level = [one for each in inside for one in each if isinstance(one, dict | list)]
        if level:
            raise RecursionError
        if "\\ud" in text.lower():  # may be half of a pair, which no file and no terminal takes
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise expected(f"at most {_DEEPEST} levels of JSON in {where}", "more", _AGAIN) from None
    except ValueError as error:
        raise expected(f"JSON in {where}", str(error), _AGAIN) from None
    return content


def _no_constant(word: str) -> float:
    raise ValueError(f"{word}, which is no JSON")


def _integer(digits: str) -> int:
    if len(digits) > 19:  # more than 64 bits: no float, no size, and no number of ours
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]}, which is no float")
    return number


_STRICT = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_no_constant)
_ANY = json.JSONDecoder(parse_int=_integer, parse_float=_float)


def check_count(text: str, where: object) -> None:
    """Refuse JSON, or lines of it, of more values than there is memory for."""
    if sum(map(text.count, ",[{")) > _MOST_VALUES:
        raise expected(f"at most {_MOST_VALUES:,} values in {where}", "more", _AGAIN)


@overload
def read_json(path: Path, *, constants: bool = False) -> dict[str, Any]: ...
@overload
def read_json(path: Path, kind: type[T], *, constants: bool = False) -> T: ...
def read_json(path: Path, kind: Any = dict, *, constants: bool = False) -> Any:
    """The object (or another `kind`, as `unsmooth.schema` reads it) in a JSON file; see `parse_json`.

    Raises:
        FileNotFoundError: There is no such file: what that means is for the caller to say.
        UnsmoothError: In one line, what is wrong with it.
    """
    where = repr(str(path))
    return parse(kind, parse_json(read_text(path), where, constants=constants), where=where)


def below(folder: Path, name: object) -> Path:
    """A file that another file names, which must be written as one below their folder.

    >>> below(Path("run"), "scans/step-1").as_posix()
    'run/scans/step-1'
    >>> below(Path("run"), "../secret")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected the name of a file in 'run' but got '../secret'. Try another copy of it.
    """
    path = Path(name) if isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_NAME else None
    if path is None or path.is_absolute() or path.drive or ".." in path.parts or "\\" in str(name) or not path.parts:
        raise expected(f"the name of a file in {str(folder)!r}", repr(name)[:80], _AGAIN)
    return folder / path


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
    """Refuse a folder that nothing could be written to, before any work is done for it; leaves nothing behind."""
    _probe(folder.resolve(), folder)


@contextmanager
def whole_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A draft to fill beside `folder`, moved into its place at the end: it appears whole or not at all.

    Drafts of processes that were killed are removed first.

    Args:
        folder: Must not exist, or be empty.
        replace: Put the draft in the place of one that is not empty; until then that one stays as it is.
    """
    folder = folder.resolve()
    place = folder.parent / f".{secrets.token_hex(8)}.tmp"
    draft = place / "new"
    fresh = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        # Held before it has the name of a draft, or another process would take it for an abandoned one.
        unnamed = place.with_suffix(".new")
        unnamed.mkdir()
        with _locked(unnamed):
            unnamed.rename(place)
            draft.mkdir()
            yield draft
            if replace and folder.exists():
                _swap(draft, folder, place / "old")
            else:
                if folder.is_dir():
                    folder.rmdir()  # not every system moves a folder onto an empty one
                os.replace(draft, folder)
    except OSError as error:
        raise _not_writable(f"a place to write {folder.name!r}", folder.parent, error) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # until the first that holds something, as all do where it went well
            for parent in fresh:
                parent.rmdir()


def _swap(draft: Path, folder: Path, old: Path) -> None:
    os.replace(folder, old)
    try:
        os.replace(draft, folder)
    except OSError:
        os.replace(old, folder)
        raise


def _sweep(parent: Path) -> None:
    """Remove the drafts of `whole_folder` that no living process holds."""
    for path in parent.iterdir():
        if DRAFT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            with suppress(BlockingIOError), _locked(path):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder; the system lets go of it when the process ends, however it ends.

    Raises:
        BlockingIOError: Another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a disk that knows no locks
        yield
    finally:
        os.close(number)


def check_room(folder: Path) -> None:
    """Refuse a place where `whole_folder` could make no folder; leaves nothing behind, not even the folder."""
    if folder.exists() and not folder.is_dir():
        raise _not_writable("a writable folder", folder, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    _probe(folder.resolve().parent, folder)


def _probe(place: Path, folder: Path) -> None:
    """Write where `place` is, or will be made, for the sake of `folder`."""
    while not os.path.lexists(place):
        place = place.parent
    probe = place / f".{secrets.token_hex(8)}.tmp"
    try:
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
            content = read_json(path)
            if content.get("format") != self.form:
                hint = "the unsmooth version that wrote it"
                raise expected(f"{self.kind} format {self.form}", repr(content.get("format"))[:80], hint)
            return parse(content)
        except FileNotFoundError:
            raise expected(
                f"a folder that {self.writer} wrote", repr(str(folder)), f"`unsmooth {self.verb} … --out DIR` first"
            ) from None
        except UnsmoothError as error:
            # What is wrong inside, without the hint that any file gets.
            told = str(error).partition(" Try ")[0].rstrip(".")
            raise expected(f"a whole {file} in {str(folder)!r}", f"this: {told}", self.again) from None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise expected(f"a whole {file} in {str(folder)!r}", type(error).__name__, self.again) from None


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
