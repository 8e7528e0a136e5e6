"""Archives unpacked into a folder of their own, never outside of it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import Careful, below, open_file

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
