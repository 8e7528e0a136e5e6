"""Images in a folder per class, decoded one by one: data sets that do not fit into memory, such as ImageNet."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy
import torch
from torch import Tensor

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.files import open_image
from unsmooth.training.data.images import Images, missing

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_TRIES = 10
_SCALE = (0.08, 1.0)
_LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))
# The share of the shorter side that the centre crop keeps: 224 of 256.
_KEPT = 224 / 256


@dataclass(frozen=True)
class ImageFolder:
    """Files with labels.

    Args:
        folder: Where the folders of the classes are.
        files: Relative to it.
        labels: (count,) int64, the place of a file's class in `names`.
        names: Of the classes.
    """

    folder: Path
    files: tuple[str, ...]
    labels: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.names)

    @cached_property
    def digest(self) -> str:
        """Of the names and sizes of the files: their content would take minutes to read."""
        state = hashlib.sha256()
        for file in self.files:
            size = _found(os.stat, self.folder / file).st_size
            state.update(f"{file}\0{size}\n".encode("utf-8", "surrogateescape"))
        return state.hexdigest()

    def load(self, index: int, key: int, size: int) -> Tensor:
        """An image for training, (3, size, size) uint8: a random part of it, resized.

        The part has 8 % to 100 % of the area and sides in a ratio from 3/4 to 4/3 (Szegedy et al. 2015, arXiv
        1409.4842), drawn from `key` alone.

        Args:
            index: Which image.
            key: A key of `unsmooth.keyed` for this image in this epoch.
            size: Height and width of the result.
        """
        image = self._opened(index)
        left, top, width, height = random_part(image.width, image.height, key)
        # Cropped first: the filter must not see what lies outside of the part.
        return _tensor(_resized(image.crop((left, top, left + width, top + height)), size, size))

    def load_eval(self, index: int, size: int) -> Tensor:
        """An image for evaluation, (3, size, size) uint8: 224/256 of the shorter side, from the centre."""
        image = self._opened(index)
        short = round(size / _KEPT)
        scale = short / min(image.width, image.height)
        width, height = max(short, int(image.width * scale)), max(short, int(image.height * scale))
        left, top = round((width - size) / 2), round((height - size) / 2)
        return _tensor(_resized(image, width, height).crop((left, top, left + size, top + size)))

    def load_whole(self, index: int) -> Tensor:
        """An image as it is, (3, height, width) uint8."""
        return _tensor(self._opened(index))

    def _opened(self, index: int) -> Image:
        return _found(open_image, self.folder / self.files[index])


def read_image_folder(folder: str | Path) -> ImageFolder:
    """List the images in a folder of folders, one for each class; classes are in alphabetical order."""
    folder = Path(folder)
    names = sorted(entry.name for entry in os.scandir(folder) if _is_class(entry)) if folder.is_dir() else []
    files = [(f"{name}/{file}", label) for label, name in enumerate(names) for file in _images_in(folder / name)]
    if not files:
        hint = "a folder such as train/<class>/<image>.png"
        raise expected(f"a folder for each class of images in {folder}", missing(folder), hint)
    labels = torch.tensor([label for _, label in files])
    counts = labels.bincount(minlength=len(names))
    if (counts == 0).any():
        empty = folder / names[int(counts.argmin())]
        raise expected(f"images in {empty}", missing(empty), "removing the folder, or filling it")
    return ImageFolder(folder, tuple(file for file, _ in files), labels, tuple(names))


def read_image_folders(folder: str | Path) -> tuple[ImageFolder, ImageFolder]:
    """The two splits of a folder with ``train/`` and ``val/`` (or ``valid/``, ``test/``), of the same classes."""
    folder = Path(folder)
    train = read_image_folder(folder / "train")
    others = [folder / name for name in ("val", "valid", "validation", "test") if (folder / name).is_dir()]
    if not others:
        raise expected(f"val/ or test/ beside train/ in {folder}", missing(folder), "a folder with both splits")
    test = read_image_folder(others[0])
    if train.names != test.names:
        alone = sorted(set(train.names) ^ set(test.names))
        hint = "the same folders in both"
        raise expected(f"the same classes in {train.folder} and {test.folder}", f"{alone[0]!r} in one of them", hint)
    return train, test


def read_whole(train: ImageFolder, test: ImageFolder, name: str, size: int | None = None) -> Images:
    """Decode all images into memory; for small data sets.

    Args:
        train: To learn from.
        test: To test on.
        name: What to call it.
        size: Resize to this; None where all images have one size already.
    """
    return Images(
        train_images=_stacked(train, size),
        train_labels=train.labels,
        test_images=_stacked(test, size),
        test_labels=test.labels,
        classes=train.classes,
        name=name,
        digest=f"{train.digest[:16]}-{test.digest[:16]}",
    )


def random_part(width: int, height: int, key: int) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random part of an image.

    >>> left, top, part_width, part_height = random_part(100, 60, key=7)
    >>> 0 <= left <= 100 - part_width, 0 <= top <= 60 - part_height, part_width * part_height >= 0.07 * 6000
    (True, True, True)
    """
    numbers = keyed.uniform(keyed.derive(torch.tensor(key), 4 * _TRIES)).reshape(_TRIES, 4).tolist()
    for area, shape, across, down in numbers:
        pixels = width * height * (_SCALE[0] + (_SCALE[1] - _SCALE[0]) * area)
        ratio = math.exp(_LOG_RATIO[0] + (_LOG_RATIO[1] - _LOG_RATIO[0]) * shape)
        part_width, part_height = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < part_width <= width and 0 < part_height <= height:
            left, top = int(across * (width - part_width + 1)), int(down * (height - part_height + 1))
            return left, top, part_width, part_height
    # A very long image: the largest part from its centre with an allowed ratio.
    part_width = max(1, min(width, round(height * math.exp(_LOG_RATIO[1]))))
    part_height = max(1, min(height, round(width / math.exp(_LOG_RATIO[0]))))
    return (width - part_width) // 2, (height - part_height) // 2, part_width, part_height


def _found(read: Callable[[Path], T], path: Path) -> T:
    try:
        return read(path)
    except OSError as error:
        raise expected(f"a whole image in {str(path)!r}", error.strerror, "replacing that file") from None


def _is_class(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _images_in(folder: Path) -> list[str]:
    names = (entry.name for entry in os.scandir(folder))
    return sorted(name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith("."))


def _resized(image: Image, width: int, height: int) -> Image:
    from PIL import Image

    return image.resize((width, height), Image.Resampling.BICUBIC)


def _tensor(image: Image) -> Tensor:
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous()


def _stacked(folder: ImageFolder, size: int | None) -> Tensor:
    first = folder.load_whole(0)
    shape = first.shape if size is None else torch.Size((3, size, size))
    images = torch.empty(len(folder), *shape, dtype=torch.uint8)
    for index in range(len(folder)):
        image = folder._opened(index)
        if size is not None and image.size != (size, size):
            image = _resized(image, size, size)
        pixels = _tensor(image)
        if pixels.shape != shape:
            got = f"{pixels.shape[2]} × {pixels.shape[1]} in {folder.folder / folder.files[index]}"
            raise expected(f"images of one size, {shape[2]} × {shape[1]}", got, "a size to resize them to")
        images[index] = pixels
    return images
