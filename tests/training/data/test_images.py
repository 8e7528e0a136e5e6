from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from tests.training.data.conftest import Small
from unsmooth.errors import UnsmoothError
from unsmooth.training.data import cards
from unsmooth.training.data.digests import records_digest
from unsmooth.training.data.images import Images, read_cifar


def test_records_become_tensors(small: Small, tmp_path: Path) -> None:
    images = read_cifar(small.write(tmp_path))
    assert images.train_images.shape == (200, 3, 32, 32)
    assert images.train_images.dtype == torch.uint8
    assert images.train_labels.dtype == torch.int64
    # Red, then green, then blue, each row by row: byte 2 + 1024·channel + 32·row + column of a record.
    assert int(images.train_images[5, 1, 2, 3]) == small.train[5, 2 + 1024 + 64 + 3]
    assert images.test_labels.tolist() == small.test[:, 1].tolist()
    assert (images.classes, images.name, images.synthetic) == (100, "cifar100", False)


def test_the_digest_does_not_depend_on_the_order(small: Small, tmp_path: Path) -> None:
    one = read_cifar(small.write(tmp_path))
    small.train[:] = small.train[::-1].copy()
    other = read_cifar(small.write(tmp_path))
    assert one.digest == other.digest
    assert one.train_labels.tolist() == other.train_labels.tolist()[::-1]


def test_limits_spread_over_the_classes(small: Small, tmp_path: Path) -> None:
    images = read_cifar(small.write(tmp_path)).limited(train=150, test=7)
    assert images.train_labels.bincount().tolist() == [2] * 50 + [1] * 50
    assert images.test_labels.tolist() == list(range(7))
    with pytest.raises(UnsmoothError, match="at least one image"):
        images.limited(train=0)


def test_moving_keeps_everything_else(small: Small, tmp_path: Path) -> None:
    images = read_cifar(small.write(tmp_path))
    moved = images.to("meta")
    assert {getattr(moved, f"{s}_{k}").device.type for s in ("train", "test") for k in ("images", "labels")} == {"meta"}
    assert isinstance(moved, Images)
    assert moved.digest == images.digest


def test_what_is_wrong_with_the_files(small: Small, tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"absent but got no such folder\. Try `unsmooth data get cifar100`"):
        read_cifar(tmp_path / "absent")
    (small.write(tmp_path / "half") / "test.bin").unlink()
    with pytest.raises(UnsmoothError, match=r"Expected test\.bin in .*half but got train\.bin"):
        read_cifar(tmp_path / "half")
    folder = small.write(tmp_path / "truncated")
    (folder / "train.bin").write_bytes((folder / "train.bin").read_bytes()[:-10])
    with pytest.raises(UnsmoothError, match=f"whole records of 3074 bytes but got {200 * 3074 - 10} bytes"):
        read_cifar(folder)
    small.train[3, 50] ^= 255
    with pytest.raises(UnsmoothError, match="the train images of cifar100"):
        read_cifar(small.write(tmp_path / "changed"))
    with pytest.raises(UnsmoothError, match="100 or 10 classes"):
        read_cifar(folder, classes=20)


def test_the_official_parts_of_cifar10_are_one_split(small: Small, tmp_path: Path) -> None:
    card = cards.cifar_card("cifar10")
    records = small.train[:, 1:].copy()
    records[:, 0] %= 10
    for part in range(5):
        records[part * 40 : part * 40 + 40].tofile(tmp_path / f"data_batch_{part + 1}.bin")
    records[:100].tofile(tmp_path / "test_batch.bin")
    digests = {"train": records_digest(records), "test": records_digest(records[:100])}
    with pytest.MonkeyPatch.context() as patch:
        small_card = replace(card, sizes={"train": 200, "test": 100}, digests=digests)
        patch.setitem(cards.CARDS, "cifar10", small_card)  # type: ignore[arg-type]
        images = read_cifar(tmp_path, classes=10)
    numpy.testing.assert_array_equal(images.train_labels.numpy(), records[:, 0])
    numpy.testing.assert_array_equal(images.train_images.numpy().reshape(200, -1), records[:, 1:])
