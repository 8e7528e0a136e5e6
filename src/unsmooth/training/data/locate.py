"""From the name of a data set to the data: a path that was given, else ``data/NAME``, else synthetic data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from unsmooth.errors import expected
from unsmooth.training.data.cards import CARDS, CifarCard
from unsmooth.training.data.image_folder import ImageFolder, read_image_folders, read_whole
from unsmooth.training.data.images import Images, missing, read_cifar
from unsmooth.training.data.synthetic import synthetic_images, synthetic_text
from unsmooth.training.data.text import Text, open_text

ROOT = Path("data")
# Images of at most this many bytes, decoded, are held in memory.
_SMALL = 2 << 30


def find_images(
    name: str,
    data: str | Path | None = None,
    *,
    classes: int = 100,
    size: int = 32,
    train_limit: int | None = None,
    test_limit: int | None = None,
    hold_out: float = 0.0,
    seed: int = 0,
) -> Images:
    """Images that fit into memory.

    Args:
        name: "cifar100", "cifar10", "synthetic", or what to call a folder of images.
        data: Folder with the files; None looks in ``data/NAME``, and makes synthetic images where that is not there.
        classes: Of synthetic images.
        size: Height and width; CIFAR has its own.
        train_limit: Use only so many, spread over the classes.
        test_limit: Likewise.
        hold_out: Share of the training images to have in place of the test images.
        seed: Of synthetic images.

    Returns:
        Images, whose `synthetic` says whether they were made up.
    """
    folder = _folder(name, data)
    if folder is None:
        images = synthetic_images(classes, train_limit or 10_000, test_limit or 2_000, size, seed)
    else:
        images = _read_images(name, folder, size).limited(train_limit, test_limit)
    return images.held_out(hold_out).limited(test=test_limit) if hold_out else images


def _read_images(name: str, folder: Path, size: int) -> Images:
    card = CARDS.get(name)
    if isinstance(card, CifarCard):
        return read_cifar(folder, len(card.classes))
    train, test = read_image_folders(folder)
    _check_small(train, test, size)
    return read_whole(train, test, name, size)


def find_image_folders(name: str, data: str | Path | None = None) -> tuple[ImageFolder, ImageFolder] | None:
    """Training and test files of a data set that is decoded image by image; None where it is not there.

    A path that was given and holds nothing is an error; so is a broken ``data/NAME``.
    """
    folder = _folder(name, data)
    return None if folder is None else read_image_folders(folder)


def find_text(
    name: str,
    data: str | Path | None = None,
    *,
    tokenizer: Literal["bytes", "bpe"] = "bytes",
    vocabulary: int = 32_768,
    special: bool = False,
    seed: int = 0,
) -> Text:
    """A text as tokens.

    Args:
        name: "enwik8", "synthetic", or what to call a text.
        data: File or folder of the text; None looks in ``data/NAME``, and makes up a text where that is not there.
        tokenizer: "bytes" or "bpe".
        vocabulary: Tokens of a BPE.
        special: Reserve the ids 0 to 4 for [PAD], [UNK], [CLS], [SEP] and [MASK] with bytes too.
        seed: Of a synthetic text.
    """
    place = _folder(name, data)
    if place is None:
        return synthetic_text(1_000_000, seed, tokenizer=tokenizer, vocabulary=vocabulary, special=special)
    return open_text(place, tokenizer, vocabulary, special=special, name=name, cache=ROOT / "tokens")


def find_superglue(data: str | Path | None = None) -> Path:
    """The folder of SuperGLUE; there is no synthetic one."""
    folder = _folder("superglue", data)
    if folder is None:
        raise expected("SuperGLUE in data/superglue", "no such folder", "`unsmooth data get superglue`, or --data DIR")
    return folder


def _folder(name: str, data: str | Path | None) -> Path | None:
    """Where the data is; None for synthetic data. What is there but empty is an error, not a reason to make data up."""
    if name == "synthetic" and data is None:
        return None
    place = ROOT / name if data is None else Path(data)
    if data is None and not place.exists():
        return None
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        hint = f"`unsmooth data get {name}`" if name in CARDS else "a path that exists"
        raise expected(f"data in {place}", missing(place), hint)
    return place


def _check_small(train: ImageFolder, test: ImageFolder, size: int) -> None:
    needed = (len(train) + len(test)) * 3 * size * size
    if needed > _SMALL:
        got = f"{needed / 2**30:.1f} GiB in {train.folder.parent}"
        raise expected(f"at most {_SMALL / 2**30:.0f} GiB of images", got, "a recipe that decodes them one by one")
