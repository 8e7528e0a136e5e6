"""Labelled images that fit into memory, as plain tensors; and CIFAR read from its binary records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.training.data.cards import CifarCard, cifar_card
from unsmooth.training.data.cifar_records import again, binaries, checked, read_records
from unsmooth.training.data.hold_out import split_by_class


@dataclass(frozen=True)
class Images:
    """A data set of images that all have one size.

    Args:
        train_images: (count, 3, height, width) uint8.
        train_labels: (count,) int64.
        test_images: Likewise.
        test_labels: Likewise.
        classes: How many there are.
        name: Of the data set.
        digest: Of its content, whatever the order.
        synthetic: Made up, not read.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    name: str
    digest: str
    synthetic: bool = False

    def to(self, device: torch.device | str) -> Images:
        """The same images on a device."""
        return replace(
            self,
            train_images=self.train_images.to(device),
            train_labels=self.train_labels.to(device),
            test_images=self.test_images.to(device),
            test_labels=self.test_labels.to(device),
        )

    def limited(self, train: int | None = None, test: int | None = None) -> Images:
        """Only so many images of each split, equally many of each class as far as possible; the first ones in order.

        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> all_six = Images(torch.zeros(6, 3, 2, 2), labels, torch.zeros(6, 3, 2, 2), labels, 2, "six", "")
        >>> all_six.limited(train=4).train_labels.tolist(), len(all_six.limited(train=4).test_labels)
        ([0, 0, 1, 1], 6)
        """
        chosen = _evenly(self.train_labels, train)
        shown = _evenly(self.test_labels, test)
        return replace(
            self,
            train_images=self.train_images[chosen],
            train_labels=self.train_labels[chosen],
            test_images=self.test_images[shown],
            test_labels=self.test_labels[shown],
        )

    def held_out(self, share: float) -> Images:
        """A share of the training images, of each class, in place of the test images."""
        learned, held = split_by_class(self.train_labels, share)
        return replace(
            self,
            train_images=self.train_images[learned],
            train_labels=self.train_labels[learned],
            test_images=self.train_images[held],
            test_labels=self.train_labels[held],
        )


def read_cifar(folder: str | Path, classes: int = 100) -> Images:
    """CIFAR-100 or CIFAR-10 from a folder with the official binary files, every record checked.

    Args:
        folder: With ``train.bin`` and ``test.bin``, or CIFAR-10's ``data_batch_1.bin`` … and ``test_batch.bin``.
        classes: 100 or 10.
    """
    if classes not in (100, 10):
        raise expected("100 or 10 classes for CIFAR", classes, "classes=100")
    card = cifar_card(f"cifar{classes}")
    folder = Path(folder)
    train, train_digest = _read_split(folder, card, "train")
    test, test_digest = _read_split(folder, card, "test")
    train_images, train_labels = _images_and_labels(train, card)
    test_images, test_labels = _images_and_labels(test, card)
    digest = f"{train_digest[:16]}-{test_digest[:16]}"
    return Images(train_images, train_labels, test_images, test_labels, classes, card.name, digest)


def missing(folder: Path) -> str:
    """What there is instead of the files that were looked for."""
    if not folder.exists():
        return "no such folder"
    if not folder.is_dir():
        return "a file, not a folder"
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    return f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''}" if names else "an empty folder"


def _read_split(folder: Path, card: CifarCard, split: str) -> tuple[numpy.ndarray, str]:
    paths = binaries(folder, card, split)
    if not paths:
        raise expected(f"{' and '.join(card.parts[split])} in {folder}", missing(folder), again(card))
    records = read_records(paths, card)
    return records, checked(records, card, split, " + ".join(str(path) for path in paths))


def _images_and_labels(records: numpy.ndarray, card: CifarCard) -> tuple[Tensor, Tensor]:
    whole = torch.from_numpy(records)
    return whole[:, card.labels :].reshape(-1, 3, 32, 32).contiguous(), whole[:, card.labels - 1].long()


def _evenly(labels: Tensor, limit: int | None) -> Tensor:
    """Places of the first `limit` labels when the classes take turns."""
    if limit is None or limit >= len(labels):
        return torch.arange(len(labels))
    if limit < 1:
        raise expected("a limit of at least one image", limit, "--set train_limit=1000")
    by_class = labels.argsort(stable=True)
    turn = torch.cat([torch.arange(count) for count in labels.bincount().tolist()])
    return by_class[turn.argsort(stable=True)[:limit]].sort().values
