"""Official archives from their address, checked, and unpacked within bounds."""

from __future__ import annotations

import bz2
import gzip
import http.client
import lzma
import struct
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import Careful, below, open_file
from unsmooth.training.data.cards import Card
from unsmooth.training.data.digests import file_digest

_SECONDS = 30
_BLOCK = 1 << 18


def download(card: Card, folder: Path, progress: Callable[[int, int | None], None] | None = None) -> Path:
    """Fetch the archive of a data set into `folder` and check it.

    Args:
        card: Which one.
        folder: Where to put it, under its official name.
        progress: Called with the bytes so far, and in all where the server says so.
    """
    path = folder / card.archive
    try:
        _fetch(card.url, path, progress)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        said = " ".join(str(reason).split()) or type(error).__name__
        hint = f"again with a network, or --from with a copy of {card.archive}{_or_hub(card)}"
        raise expected(f"{card.name} from {card.url}", said, hint) from None
    if card.md5 is not None and (found := file_digest(path, "md5")) != card.md5:
        hint = "again, or --from with another copy"
        raise expected(f"md5 {card.md5} for {card.url}", found, hint)
    return path


def _fetch(url: str, path: Path, progress: Callable[[int, int | None], None] | None) -> None:
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer, path.open("wb") as file:
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        done = 0
        while block := answer.read(_BLOCK):
            file.write(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
    if total is not None and done != total:
        raise http.client.IncompleteRead(b"", total - done)


def _or_hub(card: Card) -> str:
    return f", or --from {card.hub}" if card.hub else ""


_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
SUFFIXES = (*_TAR, ".zip", ".gz")
_PACKED: dict[str, Any] = {"gz": gzip.open, "xz": lzma.open, "bz2": bz2.open}
# By the readers of such files, on others.
_RAISED = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, EOFError, zlib.error),
    *(ValueError, RuntimeError, NotImplementedError, struct.error, OverflowError),
)


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive.

    >>> is_archive(Path("cifar-100-binary.tar.gz")), is_archive(Path("train.bin"))
    (True, False)
    """
    return path.name.lower().endswith(SUFFIXES)


def unpack(path: Path, folder: Path, most: int, files: int) -> Path:
    """Unpack an archive into `folder`, which is returned.

    Files alone are taken, each counted as it comes out: what an archive says of its sizes may be wrong.

    Args:
        path: The archive.
        folder: Where to; nothing leaves it.
        most: Bytes that it may come to.
        files: How many files and folders it may have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    room = most
    try:
        with open_file(path) as file:
            for number, (name, stream) in enumerate(_members(path.name, file, most)):
                if number >= files:
                    raise expected(f"at most {files:,} files in {path}", "more", "another source")
                if stream is None:
                    continue
                try:
                    place = below(folder, name)
                except UnsmoothError:
                    got = f"a file named {name[:80]!r}"
                    raise expected(f"an archive that stays in its folder in {path}", got, "another source") from None
                place.parent.mkdir(parents=True, exist_ok=True)
                with stream, place.open("wb") as target:
                    while block := stream.read(1 << 20):
                        room -= len(block)
                        if room < 0:
                            raise expected(f"at most {most:,} bytes in {path}", "more once unpacked", "another source")
                        target.write(block)
    except UnsmoothError:
        raise
    except (FileExistsError, IsADirectoryError, NotADirectoryError):  # a file where it has a folder
        raise _broken(path, ValueError("two files in one place")) from None
    except _RAISED as error:
        raise _broken(path, error) from None
    return folder


def _members(name: str, file: IO[bytes], most: int) -> Iterator[tuple[str, Any]]:
    """Names and contents of what is in an archive, one after the other; folders have none."""
    if name.lower().endswith(_TAR):
        # ".tar.gz" or ".tgz", and so on.
        unpacked = next((opened(file) for end, opened in _PACKED.items() if name.lower().endswith(end)), file)
        careful: Any = Careful(unpacked, 2 * most)
        with tarfile.open(fileobj=careful, mode="r:") as archive:
            for member in archive:
                if not (member.isfile() or member.isdir()):
                    got = f"{member.name!r}, a link or a device"
                    raise expected(f"an archive that stays in its folder in {name}", got, "another source")
                yield member.name, archive.extractfile(member) if member.isfile() else None
    elif name.lower().endswith(".zip"):
        careful = Careful(file)
        with zipfile.ZipFile(careful) as zipped:
            for part in zipped.infolist():
                yield part.filename, None if part.is_dir() else zipped.open(part)
    else:
        yield name[: -len(".gz")], gzip.GzipFile(fileobj=file)


def _broken(path: Path, error: Exception) -> UnsmoothError:
    return expected(f"a whole archive in {path}", " ".join(str(error).split()) or "a damaged one", "getting it again")
