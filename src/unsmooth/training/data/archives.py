"""Archives unpacked into a folder of their own, never outside of it."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path

from unsmooth.errors import expected

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
SUFFIXES = (*_TAR, ".zip", ".gz")


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive.

    >>> is_archive(Path("cifar-100-binary.tar.gz")), is_archive(Path("train.bin"))
    (True, False)
    """
    return path.name.lower().endswith(SUFFIXES)


def unpack(path: Path, folder: Path) -> Path:
    """Unpack an archive into `folder`, which is returned."""
    name = path.name.lower()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if name.endswith(_TAR):
            with tarfile.open(path) as archive:
                # "data" refuses links and names that lead outside, devices and odd permissions.
                archive.extractall(folder, filter="data")
        elif name.endswith(".zip"):
            with zipfile.ZipFile(path) as zipped:
                _check_names(zipped, path)
                zipped.extractall(folder)
        else:
            with gzip.open(path, "rb") as source, (folder / path.name[: -len(".gz")]).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except tarfile.FilterError as error:
        raise expected(f"an archive that stays in its folder in {path}", error, "another source") from None
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise expected(f"a whole archive in {path}", " ".join(str(error).split()), "getting it again") from None
    return folder


def _check_names(zipped: zipfile.ZipFile, path: Path) -> None:
    for name in zipped.namelist():
        if name.startswith(("/", "\\")) or ".." in Path(name.replace("\\", "/")).parts:
            got = f"a file named {name!r}"
            raise expected(f"an archive that stays in its folder in {path}", got, "another source")
