"""CIFAR's binary records: finding their files, reading them, checking that they are what they should be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy

from unsmooth.errors import expected
from unsmooth.files import open_file
from unsmooth.training.data.cards import CifarCard
from unsmooth.training.data.digests import records_digest

SPLITS = ("train", "test")


def binaries(folder: Path, card: CifarCard, split: str) -> list[Path]:
    """The files of a split in `folder`: official parts, or all in one; empty where there is neither."""
    for names in (card.parts[split], (f"{split}.bin",)):
        paths = [folder / name for name in names]
        if all(path.is_file() for path in paths):
            return paths
    return []


def read_records(paths: list[Path], card: CifarCard) -> numpy.ndarray:
    """Records (count, bytes) uint8 of the files, in their order."""
    parts = []
    for path in paths:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not 0 < size <= card.most or size % card.record:
                raise expected(f"{path} to hold whole records of {card.record} bytes", f"{size} bytes", again(card))
            parts.append(numpy.frombuffer(bytearray(file.read(size)), dtype=numpy.uint8).reshape(-1, card.record))
    return numpy.concatenate(parts)


def checked(records: numpy.ndarray, card: CifarCard, split: str, where: object) -> str:
    """Refuse records that are not those of the official split; return their digest.

    The digest leaves out the coarse label, which folders of images do not have and the class implies.
    """
    if len(records) != card.sizes[split]:
        wanted = f"{card.sizes[split]} images ({card.sizes[split] * card.record} bytes) for {split} in {where}"
        raise expected(wanted, f"{len(records)} ({records.size} bytes)", again(card))
    check_labels(records[:, card.labels - 1], len(card.classes), where)
    digest = records_digest(records[:, card.labels - 1 :])
    if digest != card.digests[split]:
        wanted = f"the {split} images of {card.name} in {where} (digest {card.digests[split][:12]}…)"
        raise expected(wanted, f"others (digest {digest[:12]}…)", again(card))
    return digest


def check_labels(labels: numpy.ndarray, classes: int, where: object) -> None:
    """Refuse labels outside of the classes; the first one is named.

    >>> check_labels(numpy.array([0, 9, 10]), 10, "test.bin")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected labels from 0 to 9 in test.bin but got 10 in record 2. Try ...
    """
    outside = numpy.flatnonzero((labels < 0) | (labels >= classes))
    if outside.size:
        wrong = int(outside[0])
        hint = "getting it again, or the data set that it belongs to"
        raise expected(f"labels from 0 to {classes - 1} in {where}", f"{int(labels[wrong])} in record {wrong}", hint)


def records_of(images: numpy.ndarray, labels: numpy.ndarray, card: CifarCard) -> numpy.ndarray:
    """Records of images (count, 3, 32, 32) uint8 with classes; the coarse label is filled in."""
    check_labels(labels, len(card.classes), "the source")
    records = numpy.empty((len(images), card.record), dtype=numpy.uint8)
    records[:, card.labels :] = images.reshape(len(images), -1)
    records[:, card.labels - 1] = labels
    if card.coarse:
        records[:, 0] = numpy.array(card.coarse, dtype=numpy.uint8)[labels]
    return records


def again(card: CifarCard) -> str:
    """What to try where files are wrong."""
    return f"`unsmooth data get {card.name}`"
