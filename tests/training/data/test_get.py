"""Getting data sets from every form in which people have them, and refusing what is not them."""

from __future__ import annotations

import errno
import gzip
import io
import json
import pickle
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import numpy
import pytest
from PIL import Image

from tests.training.data.conftest import Small
from unsmooth.errors import UnsmoothError
from unsmooth.training.data import get as getting
from unsmooth.training.data.get import get


def check(folder: Path, small: Small) -> None:
    """The same records as in the source, in any order, and a record of them."""
    for split, wanted in (("train", small.train), ("test", small.test)):
        found = numpy.fromfile(folder / f"{split}.bin", numpy.uint8).reshape(-1, 3074)
        assert sorted(map(bytes, found)) == sorted(map(bytes, wanted))
    assert sorted(path.name for path in folder.iterdir()) == ["dataset.json", "test.bin", "train.bin"]
    assert {path.name for path in folder.parent.iterdir()} <= {folder.name, ".gitignore"}  # no draft is left
    record = json.loads((folder / "dataset.json").read_text())
    assert record["examples"] == {"train": 200, "test": 100}
    assert record["digests"] == small.card.digests
    assert record["files"]["test.bin"]["bytes"] == 100 * 3074


def refused(name: str, source: Path | str | None, out: Path, *words: str) -> None:
    with pytest.raises(UnsmoothError) as caught:
        get(name, None if source is None else str(source), out)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("Expected ")
    for word in words:
        assert word in message
    assert not out.exists() or not [path for path in out.iterdir() if path.suffix in (".tmp", ".old")]


# Forms of CIFAR


def test_binaries_in_any_order(small: Small, tmp_path: Path) -> None:
    small.train = small.train[numpy.random.default_rng(1).permutation(200)]
    check(get("cifar100", str(small.write(tmp_path / "source")), tmp_path / "data"), small)


@pytest.mark.parametrize("packing", ["tar.gz", "tar.xz", "zip"])
def test_an_archive_with_a_folder_in_it(small: Small, tmp_path: Path, packing: str) -> None:
    source = small.write(tmp_path / "source")
    archive = tmp_path / f"any-name.{packing}"
    if packing == "zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for path in source.iterdir():
                zipped.write(path, f"cifar-100-binary/{path.name}")
    else:
        with tarfile.open(archive, f"w:{packing.split('.')[1]}") as packed:
            packed.add(source, "cifar-100-binary")
    check(get("cifar100", str(archive), tmp_path / "data"), small)


def test_a_folder_that_holds_the_official_archive(small: Small, tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    with tarfile.open(downloads / "cifar-100-binary.tar.gz", "w:gz") as packed:
        packed.add(small.write(tmp_path / "source"), "cifar-100-binary")
    check(get("cifar100", str(downloads), tmp_path / "data"), small)


def test_pickles(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "source" / "cifar-100-python"
    folder.mkdir(parents=True)
    for split, records in (("train", small.train), ("test", small.test)):
        content = {b"data": records[:, 2:], b"fine_labels": records[:, 1].tolist(), b"filenames": [b"a.png"]}
        (folder / split).write_bytes(pickle.dumps(content, protocol=2))
    check(get("cifar100", str(tmp_path / "source"), tmp_path / "data"), small)


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


def test_a_pickle_that_would_run_something_is_not_run(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / split).write_bytes(pickle.dumps({b"data": Evil(tmp_path / "was-run")}))
    refused("cifar100", folder, tmp_path / "data", "a pickle of CIFAR images", "it asks for")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("naming", ["names", "numbers"])
def test_folders_of_images(small: Small, tmp_path: Path, naming: str) -> None:
    source = tmp_path / "source"
    for split, records in (("train", small.train), ("test", small.test)):
        for place, record in enumerate(records):
            name = small.card.classes[record[1]] if naming == "names" else str(record[1])
            path = source / split / name / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(record[2:].reshape(3, 32, 32).transpose(1, 2, 0)).save(path)
    check(get("cifar100", str(source), tmp_path / "data"), small)
    (source / "train" / ("apple" if naming == "names" else "0")).rename(source / "train" / "banana")
    (source / "test" / ("apple" if naming == "names" else "0")).rename(source / "test" / "banana")
    refused("cifar100", source, tmp_path / "other", "named after the 100 classes", "'banana'")


class Rows(list[dict[str, object]]):
    @property
    def column_names(self) -> list[str]:
        return list(self[0])

    def select_columns(self, names: list[str]) -> list[dict[str, object]]:
        return [{name: row[name] for name in names} for row in self]


def rows(records: numpy.ndarray) -> Rows:
    pictures = [Image.fromarray(record[2:].reshape(3, 32, 32).transpose(1, 2, 0)) for record in records]
    return Rows(
        {"img": picture, "coarse_label": 0, "fine_label": int(record[1])}
        for picture, record in zip(pictures, records, strict=True)
    )


@pytest.mark.parametrize("place", ["name", "disk"])
def test_hugging_face(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    library = types.ModuleType("datasets")
    splits = {"train": rows(small.train), "test": rows(small.test)}
    asked: list[str] = []
    opened = lambda source: asked.append(source) or splits  # noqa: E731
    source = "uoft-cs/cifar100"
    if place == "disk":
        source = str(tmp_path / "saved")
        Path(source).mkdir()
        (Path(source) / "dataset_dict.json").write_text("{}")
    setattr(library, "load_dataset" if place == "name" else "load_from_disk", opened)
    monkeypatch.setitem(sys.modules, "datasets", library)
    check(get("cifar100", source, tmp_path / "data"), small)
    assert asked == [source]


def test_without_the_datasets_library(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("cifar100", "uoft-cs/cifar100", tmp_path, "the datasets library", "pip install datasets", "--from")


# What is not CIFAR


def test_one_changed_pixel(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "data"
    get("cifar100", str(small.write(tmp_path / "source")), out)
    before = (out / "cifar100" / "train.bin").read_bytes()
    changed = small.train.copy()
    changed[17, 99] ^= 1
    changed.tofile(tmp_path / "source" / "train.bin")
    refused("cifar100", tmp_path / "source", out, "the train images of cifar100", small.card.digests["train"][:12])
    assert (out / "cifar100" / "train.bin").read_bytes() == before


def test_a_truncated_file(small: Small, tmp_path: Path) -> None:
    path = small.write(tmp_path / "source") / "test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    refused("cifar100", path.parent, tmp_path / "data", "whole records of 3074 bytes", str(100 * 3074 - 1))
    path.write_bytes(path.read_bytes()[: 99 * 3074])
    refused("cifar100", path.parent, tmp_path / "data", "100 images (307400 bytes) for test", "99 (304326 bytes)")


def test_a_label_out_of_range(small: Small, tmp_path: Path) -> None:
    small.train[7, 1] = 100
    refused("cifar100", small.write(tmp_path / "source"), tmp_path / "data", "labels from 0 to 99", "100 in record 7")


def test_nothing_there(small: Small, tmp_path: Path) -> None:
    refused("cifar100", tmp_path / "absent", tmp_path / "data", "no such file or folder")
    (tmp_path / "empty").mkdir()
    refused(
        "cifar100", tmp_path / "empty", tmp_path / "data", "train.bin", "an empty folder", "cifar-100-binary.tar.gz"
    )
    refused("cifar_100", None, tmp_path / "data", "Did you mean 'cifar100'?")


def test_archives_stay_inside(small: Small, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as packed:
        member = tarfile.TarInfo("../../escaped")
        member.size = 1
        packed.addfile(member, io.BytesIO(b"x"))
    refused("cifar100", tmp_path / "a.tar", tmp_path / "x" / "data", "stays in its folder")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("../../escaped", "x")
    refused("cifar100", tmp_path / "a.zip", tmp_path / "x" / "data", "stays in its folder", "escaped")
    assert not list(tmp_path.rglob("escaped"))


def test_broken_archives(small: Small, tmp_path: Path) -> None:
    for name in ("a.tar.gz", "a.zip", "a.gz"):
        (tmp_path / name).write_bytes(b"not packed")
        refused("cifar100", tmp_path / name, tmp_path / "data", "a whole archive in", name)


def test_a_full_disk(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(getting, "_describe", full)
    refused("cifar100", small.write(tmp_path / "source"), tmp_path / "data", "No space left on device")
    assert not (tmp_path / "data" / "cifar100").exists()


def test_a_source_that_cannot_be_read(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small.write(tmp_path / "source")

    def denied(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("unsmooth.training.data.cifar_records.open_file", denied)
    refused("cifar100", source, tmp_path / "data", "a source that can be read", "Permission denied", "train.bin")


# enwik8


def test_enwik8_packed_in_every_way(page: bytes, tmp_path: Path) -> None:
    (tmp_path / "enwik8").write_bytes(page)
    (tmp_path / "enwik8.gz").write_bytes(gzip.compress(page))
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as zipped:
        zipped.write(tmp_path / "enwik8", "enwik8")
    with tarfile.open(tmp_path / "package.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "enwik8.gz", "package-1.0/data/enwik8.gz")
    for name in ("enwik8", "enwik8.gz", "enwik8.zip", "package.tar.gz"):
        folder = get("enwik8", str(tmp_path / name), tmp_path / "data")
        assert (folder / "enwik8").read_bytes() == page
        assert sorted(path.name for path in folder.iterdir()) == ["dataset.json", "enwik8"]


def test_another_text(page: bytes, tmp_path: Path) -> None:
    (tmp_path / "enwik8").write_bytes(page[:-1])
    refused("enwik8", tmp_path / "enwik8", tmp_path / "data", f"{len(page)} bytes", str(len(page) - 1))
    (tmp_path / "enwik8").write_bytes(page[:-1] + b"x")
    refused("enwik8", tmp_path / "enwik8", tmp_path / "data", "Expected md5", "but got")
    refused("enwik8", "some/name", tmp_path / "data", "'some/name'", "enwik8.zip")


# SuperGLUE


def write_lines(path: Path, lines: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_superglue(tmp_path: Path) -> None:
    source = tmp_path / "source"
    line = {"premise": "p", "hypothesis": "ö", "label": "neutral", "idx": 0}
    write_lines(source / "superglue" / "CB" / "val.jsonl", [line] * 56)
    write_lines(source / "superglue" / "FewGLUE_BoolQ" / "train32.jsonl", [{"question": "q"}] * 32)
    write_lines(source / "superglue" / "AX-b" / "AX-b.jsonl", [{"idx": n} for n in range(1104)])
    folder = get("superglue", str(source), tmp_path / "data")
    assert [json.loads(row) for row in (folder / "CB" / "val.jsonl").read_text().splitlines()] == [line] * 56
    record = json.loads((folder / "dataset.json").read_text())
    assert record["examples"] == {"boolq": {"train32": 32}, "cb": {"val": 56}, "axb": {"test": 1104}}
    assert set(record["files"]) == {"CB/val.jsonl", "BoolQ/train32.jsonl", "AX-b/test.jsonl"}


def test_superglue_that_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "source" / "CB" / "val.jsonl"
    write_lines(path, [{}] * 55)
    refused("superglue", tmp_path / "source", tmp_path / "data", "56 lines in val of CB", "55")
    path.write_text('{"a": 1}\n{"a": \n')
    refused("superglue", tmp_path / "source", tmp_path / "data", "a JSON object in each line", "line 2 of", "val.jsonl")
    path.unlink()
    refused("superglue", tmp_path / "source", tmp_path / "data", "folders such as BoolQ", "none of them")
