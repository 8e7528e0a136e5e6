"""Hugging Face data sets, by name or on disk, through the `datasets` library, which is imported only here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy

from unsmooth.errors import expected
from unsmooth.training.data.cards import CifarCard


def is_saved(folder: Path) -> bool:
    """Whether a folder is what `DatasetDict.save_to_disk` wrote."""
    return (folder / "dataset_dict.json").is_file()


def open_hub(source: str | Path, configuration: str | None = None) -> Mapping[str, Any]:
    """The splits of a data set, by name: on the hub, or a folder that `save_to_disk` wrote."""
    library = _library()
    try:
        found = (
            library.load_from_disk(str(source))
            if isinstance(source, Path)
            else library.load_dataset(source, *([configuration] if configuration else []))
        )
    except Exception as error:  # the library raises its own, the hub's and the network's errors
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise expected(f"a Hugging Face data set in {source}", said, "a path, or a name on the hub") from None
    if not isinstance(found, Mapping):
        raise expected(f"train and test splits in {source}", "one split", "the whole data set")
    return found


def read_cifar_split(splits: Mapping[str, Any], split: str, card: CifarCard) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Images (count, 3, 32, 32) uint8 and labels of a split of CIFAR."""
    if split not in splits:
        raise expected(f"a split {split!r}", f"splits {', '.join(splits)}", "another copy of the data set")
    rows = splits[split]
    image = _first(rows, ("img", "image"))
    label = _first(rows, ("fine_label", "label", "labels"))
    images = numpy.stack([numpy.asarray(picture.convert("RGB")) for picture in _column(rows, image)])
    if images.shape[1:] != (32, 32, 3):
        raise expected("images of 32 × 32", f"{images.shape[2]} × {images.shape[1]}", f"--from {card.hub}")
    return images.transpose(0, 3, 1, 2), numpy.asarray(list(_column(rows, label)), dtype=numpy.int64)


def _column(rows: Any, name: str) -> Iterator[Any]:
    for row in rows.select_columns([name]):
        yield row[name]


def _first(rows: Any, names: tuple[str, ...]) -> str:
    for name in names:
        if name in rows.column_names:
            return name
    raise expected(f"a column {' or '.join(names)}", ", ".join(rows.column_names), "another copy of the data set")


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        hint = "pip install datasets, or --from with a folder or an archive"
        raise expected("the datasets library for Hugging Face data", "none", hint) from None
