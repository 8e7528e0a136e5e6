"""Where the images of a batch come from: all of them on the device, or decoded on the host a batch ahead."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from unsmooth import keyed
from unsmooth.training.config import Config
from unsmooth.training.data.hold_out import split_by_class
from unsmooth.training.data.image_folder import ImageFolder
from unsmooth.training.data.images import Images
from unsmooth.training.order import Order
from unsmooth.training.place import Place
from unsmooth.training.tasks.dealing import spread
from unsmooth.training.tasks.feed import Feed

_WORKERS = 16


class Batch(NamedTuple):
    """Images of one process in one batch, on the device.

    Args:
        images: (share, 3, height, width) uint8.
        labels: (share,) int64.
        sample: (share,) int64: which images they are.
    """

    images: Tensor
    labels: Tensor
    sample: Tensor


class ImageSource(Protocol):
    """Images by batch for training, and by number for evaluation."""

    order: Order
    classes: int
    tests: int

    def begin(self, batch: int) -> None:
        """Get ready, on the host, for a batch."""

    def take(self, batch: Tensor) -> Batch:
        """The images of a batch."""

    def test(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Test images and their labels by number, on the device."""

    def describe(self) -> dict[str, Any]:
        """Which images, and how many."""


class ResidentImages:
    """All images on the device.

    Args:
        images: The data set.
        config: The run.
        place: This process.
        share: Images that this process takes at a time.
    """

    def __init__(self, images: Images, config: Config, place: Place, share: int) -> None:
        self.images = images.to(place.device)
        self.classes, self.tests = images.classes, len(images.test_images)
        self.order = Order(len(images.train_images), share, config.seed, place, config.repeats)

    def begin(self, batch: int) -> None:
        """Shuffle where an epoch begins, or where a run is taken up inside one."""
        self.order.begin(batch // self.order.batches)

    def take(self, batch: Tensor) -> Batch:
        """See `ImageSource`."""
        chosen = self.order.take(batch % self.order.batches)
        return Batch(self.images.train_images[chosen], self.images.train_labels[chosen], chosen)

    def test(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """See `ImageSource`."""
        where = places.to(self.images.test_labels.device)
        return self.images.test_images[where], self.images.test_labels[where]

    def describe(self) -> dict[str, Any]:
        """See `ImageSource`."""
        images = self.images
        return {
            "name": images.name,
            "synthetic": images.synthetic,
            "digest": images.digest,
            "train": len(images.train_images),
            "test": len(images.test_images),
            "classes": images.classes,
        }


class ImageFiles:
    """Files that threads decode and crop on the host, a batch ahead. Pillow lets other threads run while it works.

    Args:
        train: Files to learn from.
        test: Files to test on.
        size: Height and width of the images.
        config: The run.
        place: This process.
        share: Images that this process takes at a time.
    """

    def __init__(
        self, train: ImageFolder, test: ImageFolder, size: int, config: Config, place: Place, share: int
    ) -> None:
        self.train = _limited(train, config.data.train_limit)
        if config.data.hold_out:
            learned, held = split_by_class(self.train.labels, config.data.hold_out)
            self.train, test = _some(self.train, learned), _some(self.train, held)
        self.test_files = _limited(test, config.data.test_limit)
        self.size, self.device, self.name = size, place.device, config.data.name
        self.classes, self.tests = train.classes, len(self.test_files)
        self._cropping = keyed.stream(config.seed, "resized crop")
        # Two orders of the same samples: the one on the host says what to decode, ahead of time and in its own thread.
        self.order = Order(len(self.train), share, config.seed, place, config.repeats)
        host = replace(place, device=torch.device("cpu"))
        self._ahead = Order(len(self.train), share, config.seed, host, config.repeats)
        self._workers = ThreadPoolExecutor(max(1, min(_WORKERS, _processors() // place.ranks)))
        self.feed = Feed(self._read, place.device)

    def _read(self, batch: int) -> Batch:
        epoch, within = divmod(batch, self._ahead.batches)
        self._ahead.begin(epoch)
        chosen = self._ahead.take(torch.tensor(within))
        keys = keyed.keys(self._cropping, epoch, chosen, self._ahead.copy)
        load = partial(self.train.load, size=self.size)
        images = torch.stack(list(self._workers.map(load, chosen.tolist(), keys.tolist())))
        return Batch(images, self.train.labels[chosen], chosen)

    def begin(self, batch: int) -> None:
        """Bring the decoded images to the device."""
        self.feed.bring(batch)

    def take(self, batch: Tensor) -> Batch:
        """What `begin` brought; `batch` was its number."""
        return Batch(*self.feed.tensors)

    def test(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """See `ImageSource`."""
        load = partial(self.test_files.load_eval, size=self.size)
        images = torch.stack(list(self._workers.map(load, places.tolist())))
        return images.to(self.device), self.test_files.labels[places].to(self.device)

    def describe(self) -> dict[str, Any]:
        """See `ImageSource`."""
        return {
            "name": self.name,
            "synthetic": False,
            "digest": f"{self.train.digest[:16]}-{self.test_files.digest[:16]}",
            "train": len(self.train),
            "test": len(self.test_files),
            "classes": self.classes,
        }


def _limited(folder: ImageFolder, limit: int | None) -> ImageFolder:
    """Evenly spread over the files, which are in the order of their classes."""
    return folder if limit is None else _some(folder, spread(len(folder), limit))


def _some(folder: ImageFolder, places: Tensor) -> ImageFolder:
    return replace(folder, files=tuple(folder.files[one] for one in places.tolist()), labels=folder.labels[places])


def _processors() -> int:
    usable = getattr(os, "sched_getaffinity", None)  # Linux: those that this process may use
    return len(usable(0)) if usable is not None else os.cpu_count() or 1
