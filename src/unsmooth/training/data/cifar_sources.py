"""CIFAR in the forms in which people have it, turned into records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy

from unsmooth.errors import expected
from unsmooth.training.data import hub
from unsmooth.training.data.cards import CifarCard
from unsmooth.training.data.cifar_records import SPLITS, binaries, read_records, records_of
from unsmooth.training.data.image_folder import ImageFolder, read_image_folders, read_whole
from unsmooth.training.data.images import missing
from unsmooth.training.data.pickles import read_pickled_images

Records = dict[str, numpy.ndarray]


def records_in(folder: Path, card: CifarCard) -> Records:
    """The records of both splits, from whatever form the folder (or a folder in it) has them in."""
    readers = (_from_binaries, _from_pickles, _from_saved, _from_images)
    inside = sorted(path for path in folder.rglob("*") if path.is_dir() and not path.name.startswith("."))
    # The folder itself and the archive's own folder in it come before the thousands of others there may be.
    for reader in readers:
        for place in (folder, *inside):
            found = reader(place, card)
            if found is not None:
                return found
    wanted = f"{' and '.join((*card.parts['train'], *card.parts['test']))}, or train/<class>/*.png, in {folder}"
    raise expected(wanted, missing(folder), f"{card.archive}, unpacked or not")


def records_from_hub(splits: Mapping[str, object], card: CifarCard) -> Records:
    """The records of both splits of a Hugging Face data set."""
    return {split: records_of(*hub.read_cifar_split(splits, split, card), card) for split in SPLITS}


def _from_binaries(folder: Path, card: CifarCard) -> Records | None:
    paths = {split: binaries(folder, card, split) for split in SPLITS}
    if not all(paths.values()):
        return None
    return {split: read_records(paths[split], card) for split in SPLITS}


def _from_pickles(folder: Path, card: CifarCard) -> Records | None:
    paths = {split: [folder / name for name in card.pickles[split]] for split in SPLITS}
    if not all(path.is_file() for files in paths.values() for path in files):
        return None
    found = {}
    for split in SPLITS:
        parts = [records_of(*read_pickled_images(path), card) for path in paths[split]]
        found[split] = numpy.concatenate(parts)
    return found


def _from_saved(folder: Path, card: CifarCard) -> Records | None:
    return records_from_hub(hub.open_hub(folder), card) if hub.is_saved(folder) else None


def _from_images(folder: Path, card: CifarCard) -> Records | None:
    if not (folder / "train").is_dir():
        return None
    train, test = read_image_folders(folder)
    official = _official_order(train, card)
    images = read_whole(train, test, card.name)
    if images.train_images.shape[2:] != (32, 32):
        raise expected(f"images of 32 × 32 in {folder}", tuple(images.train_images.shape[2:]), card.archive)
    return {
        "train": records_of(images.train_images.numpy(), official[images.train_labels.numpy()], card),
        "test": records_of(images.test_images.numpy(), official[images.test_labels.numpy()], card),
    }


def _official_order(folder: ImageFolder, card: CifarCard) -> numpy.ndarray:
    """The official label of each class folder, which is named after its class or its label."""
    places = {name: place for place, name in enumerate(card.classes)}
    places |= {str(place): place for place in range(len(card.classes))}
    order = []
    for name in folder.names:
        place = places.get(_spelled(name), places.get(name.lstrip("0") or "0"))
        if place is None:
            wanted = f"folders named after the {len(card.classes)} classes of {card.name} in {folder.folder}"
            raise expected(wanted, repr(name), f"names such as {card.classes[0]!r}")
        order.append(place)
    if sorted(order) != list(range(len(card.classes))):
        raise expected(f"{len(card.classes)} classes in {folder.folder}", len(set(order)), card.archive)
    return numpy.array(order)


def _spelled(name: str) -> str:
    return name.lower().replace(" ", "_").replace("-", "_")
