"""A CIFAR-100 of 300 images, and an enwik8 of a few lines: the real ones with other sizes and checksums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import pytest

from unsmooth.training.data import cards


@dataclass
class Small:
    """A small CIFAR."""

    card: cards.CifarCard
    train: numpy.ndarray
    test: numpy.ndarray

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        self.train.tofile(folder / "train.bin")
        self.test.tofile(folder / "test.bin")
        return folder


def reference_digest(records: numpy.ndarray) -> str:
    hashes = [hashlib.sha256(bytes(record)).digest() for record in records[:, 1:]]
    return hashlib.sha256(b"".join(sorted(hashes))).hexdigest()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Small:
    generator = numpy.random.default_rng(0)
    card = cards.cifar_card("cifar100")
    splits = {}
    for split, count in (("train", 200), ("test", 100)):
        records = generator.integers(0, 256, (count, 3074), dtype=numpy.uint8)
        records[:, 1] = numpy.arange(count) % 100
        records[:, 0] = numpy.array(card.coarse)[records[:, 1]]
        splits[split] = records
    digests = {split: reference_digest(records) for split, records in splits.items()}
    tiny = replace(card, sizes={"train": 200, "test": 100}, digests=digests)
    monkeypatch.setitem(cards.CARDS, "cifar100", tiny)  # type: ignore[arg-type]
    return Small(tiny, splits["train"], splits["test"])


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> bytes:
    content = "Ein Größenwahn\nof bytes\n".encode() * 40
    card = cards.card("enwik8")
    assert isinstance(card, cards.TextCard)
    md5 = hashlib.md5(content).hexdigest()
    monkeypatch.setitem(cards.CARDS, "enwik8", replace(card, bytes=len(content), content_md5=md5))  # type: ignore[arg-type]
    return content
