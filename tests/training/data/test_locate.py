from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from PIL import Image

from tests.training.data.conftest import Small
from unsmooth.errors import UnsmoothError
from unsmooth.training.data.locate import find_image_folders, find_images, find_superglue, find_text


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_images_come_from_the_path_then_the_data_folder_then_nowhere(small: Small, tmp_path: Path) -> None:
    made_up = find_images("cifar100", classes=5, size=8, train_limit=20, test_limit=10)
    assert made_up.synthetic
    assert made_up.train_images.shape == (20, 3, 8, 8)
    small.write(tmp_path / "data" / "cifar100")
    found = find_images("cifar100", train_limit=100)
    assert not found.synthetic
    assert found.train_labels.bincount().tolist() == [1] * 100
    small.write(tmp_path / "elsewhere")
    assert find_images("cifar100", tmp_path / "elsewhere").digest == found.digest
    assert find_images("synthetic", classes=3, size=4, train_limit=6, test_limit=3).synthetic


def test_broken_data_is_not_replaced_by_made_up_data(small: Small, tmp_path: Path) -> None:
    folder = small.write(tmp_path / "data" / "cifar100")
    (folder / "train.bin").write_bytes(b"x" * 3074)
    with pytest.raises(UnsmoothError, match=r"200 images .* got 1 \(3074 bytes\)\. Try `unsmooth data get cifar100`"):
        find_images("cifar100")
    (folder / "train.bin").unlink()
    (folder / "test.bin").unlink()
    with pytest.raises(UnsmoothError, match=r"data in data/cifar100 but got an empty folder\. Try `unsmooth data get"):
        find_images("cifar100")
    with pytest.raises(UnsmoothError, match="data in nowhere but got no such folder"):
        find_images("cifar100", "nowhere")


def test_folders_of_images_by_any_name(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("a", "b"):
            path = tmp_path / "pets" / split / name / "1.png"
            path.parent.mkdir(parents=True)
            Image.fromarray(numpy.zeros((6, 9, 3), numpy.uint8)).save(path)
    images = find_images("pets", "pets", size=8)
    assert (images.name, images.classes, images.synthetic) == ("pets", 2, False)
    assert images.train_images.shape == (2, 3, 8, 8)
    folders = find_image_folders("pets", "pets")
    assert folders is not None
    assert [len(folder) for folder in folders] == [2, 2]
    assert find_image_folders("imagenet") is None
    with pytest.raises(UnsmoothError, match=r"at most 2 GiB of images but got 4\.5"):
        find_images("pets", "pets", size=20_000)


def test_texts(page: bytes, tmp_path: Path) -> None:
    assert find_text("enwik8").synthetic
    (tmp_path / "data" / "enwik8").mkdir(parents=True)
    (tmp_path / "data" / "enwik8" / "enwik8").write_bytes(page)
    (tmp_path / "data" / "enwik8" / "dataset.json").write_text("{}")
    text = find_text("enwik8")
    assert bytes(text.train[:].tolist()) == page[: len(page) * 90 // 100]
    assert (text.name, text.synthetic) == ("enwik8", False)
    (tmp_path / "mine.txt").write_bytes(page)
    assert find_text("mine", "mine.txt", special=True).vocabulary == 261
    with pytest.raises(UnsmoothError, match="a path that exists"):
        find_text("mine", "yours.txt")


def test_superglue_is_never_made_up(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match="Try `unsmooth data get superglue`"):
        find_superglue()
    (tmp_path / "data" / "superglue" / "CB").mkdir(parents=True)
    assert find_superglue() == Path("data/superglue")
