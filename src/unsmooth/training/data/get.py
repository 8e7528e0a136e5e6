"""Getting a public data set into the data folder: found, checked, and put there whole or not at all."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unsmooth.errors import expected
from unsmooth.files import check_room, whole_folder, write_whole
from unsmooth.training.data import hub
from unsmooth.training.data.cards import Card, CifarCard, TextCard, card
from unsmooth.training.data.cifar_records import SPLITS, checked
from unsmooth.training.data.cifar_sources import records_from_hub, records_in
from unsmooth.training.data.digests import file_digest
from unsmooth.training.data.download import download, is_archive, unpack
from unsmooth.training.data.images import missing
from unsmooth.training.data.superglue import TASKS, GlueTask, find_split, numbered_rows
from unsmooth.training.data.superglue_hub import splits_from_hub

FORMAT = 1
RECORD = "dataset.json"

Progress = Callable[[int, int | None], None]


def get(name: str, source: str | None = None, out: Path = Path("data"), progress: Progress | None = None) -> Path:
    """Prepare ``out/name`` and return it; what was there is replaced at the very end.

    A data folder that is made on the way tells git to leave it alone.

    Args:
        name: "cifar100", "cifar10", "superglue" or "enwik8".
        source: A folder, an archive, a file, or the name of a Hugging Face data set; None for the official address.
        out: The data folder.
        progress: Called with the bytes downloaded so far and in all.
    """
    wanted = card(name)
    folder, fresh = out / name, not out.exists()
    check_room(folder)
    with whole_folder(folder, replace=True) as draft:
        # What is unpacked on the way lies in the draft too: it vanishes with it, whatever happens.
        held = draft / ".source"
        held.mkdir()
        with _reading(draft):
            origin, place = _origin(wanted, source, held, progress)
            facts = _fill(wanted, place, draft, held)
        shutil.rmtree(held)
        _describe(draft, wanted, origin, facts)
    if fresh:
        write_whole(out / ".gitignore", "*\n")
    return folder


@contextmanager
def _reading(draft: Path) -> Iterator[None]:
    """Tell a source that cannot be read from a place that cannot be written."""
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(draft):
            raise
        got = f"{error.strerror}: {os.fsdecode(error.filename)}"
        raise expected("a source that can be read", got, "another one") from None


def _origin(wanted: Card, source: str | None, held: Path, progress: Progress | None) -> tuple[str, Path | str]:
    """What to call the source, and the folder, file or hub name that it is."""
    if source is None:
        return wanted.url, unpack(download(wanted, held, progress), held / "unpacked", wanted.most, wanted.files)
    path = Path(source).expanduser()
    if path.is_dir() and (path / wanted.archive).is_file():
        path = path / wanted.archive
    if path.is_file() and is_archive(path):
        return path.name, unpack(path, held / "unpacked", wanted.most, wanted.files)
    if path.exists():
        return path.name, path
    if is_archive(path) or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise expected(f"a folder or an archive in {source}", "no such file or folder", "a path that exists")
    return source, source


def _fill(wanted: Card, place: Path | str, draft: Path, held: Path) -> dict[str, Any]:
    if isinstance(wanted, CifarCard):
        return _fill_cifar(wanted, place, draft)
    if isinstance(wanted, TextCard):
        return _fill_text(wanted, place, draft, held)
    return _fill_superglue(place, draft)


def _fill_cifar(wanted: CifarCard, place: Path | str, draft: Path) -> dict[str, Any]:
    if isinstance(place, str):
        found = records_from_hub(hub.open_hub(place), wanted)
    elif place.is_dir():
        found = records_in(place, wanted)
    else:
        raise expected(f"a folder or an archive of {wanted.name}", f"the file {place.name}", wanted.archive)
    digests = {}
    for split in SPLITS:
        digests[split] = checked(found[split], wanted, split, "the source")
        found[split].tofile(draft / f"{split}.bin")
    counts = {split: len(found[split]) for split in SPLITS}
    return {"examples": counts, "classes": len(wanted.classes), "digests": digests}


def _fill_text(wanted: TextCard, place: Path | str, draft: Path, held: Path) -> dict[str, Any]:
    if isinstance(place, str):
        raise expected(f"a file, folder or archive with {wanted.name}", f"the name {place!r}", wanted.archive)
    path = _text_file(wanted, place, held)
    size = path.stat().st_size
    if size != wanted.bytes:
        raise expected(f"{wanted.bytes} bytes in {wanted.name}", size, f"another copy of {wanted.archive}")
    if (found := file_digest(path, "md5")) != wanted.content_md5:
        raise expected(f"md5 {wanted.content_md5} for {wanted.name}", found, f"another copy of {wanted.archive}")
    shutil.copyfile(path, draft / wanted.name)
    return {"examples": {"bytes": size}}


def _text_file(wanted: TextCard, place: Path, held: Path) -> Path:
    """The text itself, in the place or packed once more inside of it."""
    if place.is_file():
        return place
    files = {path.name: path for path in sorted(place.rglob("*")) if path.is_file()}
    for suffix in ("", ".txt"):
        if wanted.name + suffix in files:
            return files[wanted.name + suffix]
    for suffix in (".gz", ".zip"):
        if wanted.name + suffix in files:
            return _text_file(
                wanted, unpack(files[wanted.name + suffix], held / "inner", wanted.most, wanted.files), held
            )
    raise expected(f"{wanted.name} or {wanted.archive} in {place}", missing(place), f"a copy of {wanted.archive}")


def _fill_superglue(place: Path | str, draft: Path) -> dict[str, Any]:
    counts: dict[str, dict[str, int]] = {}
    for task in TASKS.values():
        found = splits_from_hub(place, task) if isinstance(place, str) else _splits_in(place, task)
        for split, rows in found.items():
            wanted = task.sizes.get(split, len(rows))
            if len(rows) != wanted:
                raise expected(f"{wanted} lines in {split} of {task.folder}", len(rows), "getting it again")
            write_whole(draft / task.folder / f"{split}.jsonl", "".join(f"{row}\n" for row in rows))
            counts.setdefault(task.name, {})[split] = len(rows)
    if not counts:
        raise expected(f"folders such as BoolQ with train.jsonl in {place}", "none of them", "combined.zip")
    return {"examples": counts}


def _splits_in(place: Path, task: GlueTask) -> dict[str, list[str]]:
    """Lines of the splits that a folder, or a folder in it, has; each is checked to be a JSON object."""
    found = {}
    for folder in (place, *sorted(each for each in place.iterdir() if each.is_dir())):
        paths = {split: find_split(folder, task, split) for split in ("train", "val", "test", "train32")}
        few = folder / f"FewGLUE_{task.folder}" / "train32.jsonl"
        if few.is_file():
            paths["train32"] = few
        for split, path in paths.items():
            if path is not None and split not in found:
                found[split] = [json.dumps(row, ensure_ascii=False) for _, row in numbered_rows(path)]
    return found


def _describe(draft: Path, wanted: Card, origin: str, facts: dict[str, Any]) -> None:
    files = {
        str(path.relative_to(draft)): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        for path in sorted(draft.rglob("*"))
        if path.is_file()
    }
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    record = {"format": FORMAT, "name": wanted.name, "source": origin, "date": today, **facts, "files": files}
    write_whole(draft / RECORD, json.dumps(record, indent=1))
