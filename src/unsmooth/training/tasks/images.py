"""Classifying images: augmentation is part of the step, and so is gathering where the images are on the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.networks.config import ViTConfig
from unsmooth.networks.pixels import Pixels
from unsmooth.training.augment.pipeline import Augment
from unsmooth.training.config import Config
from unsmooth.training.data.hold_out import split_by_class
from unsmooth.training.data.image_folder import ImageFolder
from unsmooth.training.data.images import Images
from unsmooth.training.data.locate import find_image_folders, find_images
from unsmooth.training.order import Order
from unsmooth.training.place import Place
from unsmooth.training.task import TASKS, Task, in_full, summed_over_processes
from unsmooth.training.tasks.batches import Feed, dealt, in_parts, spread

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


_EVALUATION_BATCH = 500


class ImageInput(nn.Module):
    """From the number of a batch to what the model learns from: everything that is random is keyed by the sample.

    Args:
        source: The images.
        augment: What is done to them.
        seed: Of the run.
    """

    def __init__(self, source: ImageSource, augment: Augment, seed: int) -> None:
        super().__init__()
        self.source, self.augment = source, augment
        self._augmenting = keyed.stream(seed, "augment")
        self._mixing = keyed.stream(seed, "mix")
        self._dropping = keyed.stream(seed, "drop")

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images, soft targets, and the keys of dropout and stochastic depth."""
        order = self.source.order
        epoch, taken = batch // order.batches, self.source.take(batch)
        images, targets = self.augment(
            taken.images,
            taken.labels,
            keyed.keys(self._augmenting, epoch, taken.sample, order.copy),
            keyed.keys(self._mixing, batch),
        )
        return images, targets, keyed.keys(self._dropping, epoch, taken.sample, order.copy)


class ImageTask(Task):
    """Cross-entropy on (mixed, smoothed) labels of augmented images; accuracy on plain ones."""

    name = "images"
    better: ClassVar[Mapping[str, bool]] = {"loss": False, "accuracy": True}
    holds_out = True

    def __init__(self, config: Config, place: Place, share: int) -> None:
        super().__init__(config, place, share)
        if config.augment is None:
            raise expected("augment settings for images", "none", "AugmentConfig() in the recipe")
        network = config.network
        if not isinstance(network, ViTConfig):
            raise expected("a ViT for images", type(network).__name__, "network=ViTConfig(...)")
        self.source = self.open(network)
        if self.source.classes != network.classes:
            got = f"{network.classes}"
            raise expected(f"{self.source.classes} classes, as in the data", got, "--set network.classes=…")
        if config.augment.classes != network.classes:
            hint = f"--set augment.classes={network.classes}"
            raise expected(f"augment.classes of {network.classes}, as the network has", config.augment.classes, hint)
        self.input = ImageInput(self.source, Augment(config.augment), config.seed).to(place.device)

    def open(self, network: ViTConfig) -> ImageSource:
        """Find the images; synthetic ones where there are none."""
        data = self.config.data
        images = find_images(
            data.name,
            data.path,
            classes=network.classes,
            size=network.image,
            train_limit=data.train_limit,
            test_limit=data.test_limit,
            hold_out=data.hold_out,
        )
        return ResidentImages(images, self.config, self.place, self.share)

    @property
    def batches(self) -> int:
        """Whole batches in an epoch."""
        return self.source.order.batches

    def begin(self, batch: int) -> None:
        """Shuffle where an epoch begins, or bring decoded images."""
        self.source.begin(batch)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Gather, augment, classify."""
        images, targets, dropping = self.input(batch)
        logits = in_full(model(images.to(self.dtype), keys=dropping))
        return F.cross_entropy(logits, targets.to(logits.dtype))

    def fusible(self) -> list[nn.Module]:
        """The input: hundreds of small operations, which torch.compile turns into a few kernels."""
        return [self.input]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy on the test images, or on those held out."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.place.device)
        for part, weight in dealt(self.source.tests, _EVALUATION_BATCH, self.place):
            images, labels = self.source.test(torch.arange(part.start, part.stop))
            logits = in_full(model(self.normalise(images)))
            right = (logits.argmax(1) == labels).sum()
            nats = F.cross_entropy(logits, labels, reduction="sum").double()
            sums += weight * torch.stack([nats, right, torch.ones_like(nats) * len(labels)])
        loss, right, count = summed_over_processes(sums, self.place).tolist()
        return {"loss": loss / count, "accuracy": right / count}

    def normalise(self, images: Tensor) -> Tensor:
        """Images as the model sees them when nothing is augmented."""
        seen: Tensor = self.input.augment.normalise(images)
        return seen.to(self.dtype)

    def probe(self, sequences: int) -> Any:
        """Test images, spread over the classes, as the model sees them."""
        parts = in_parts(spread(self.source.tests, sequences))
        return [self.normalise(self.source.test(part)[0]) for part in parts]

    def save_beside(self, folder: Path) -> None:
        """How images become what the model sees, for `unsmooth scan FOLDER images/`."""
        network, augment = self.config.network, self.config.augment
        assert isinstance(network, ViTConfig)
        assert augment is not None
        Pixels(network.image, augment.mean, augment.std).save_pretrained(folder)

    def describe(self) -> dict[str, Any]:
        """Which images, and how many."""
        return {**self.source.describe(), **self.held_out()}


TASKS.add("images", ImageTask)


class ImageFileTask(ImageTask):
    """`ImageTask` on folders of files; training images are random parts, resized, of the files."""

    name = "image_files"

    def open(self, network: ViTConfig) -> ImageSource:
        """List the files; synthetic images where there are none."""
        found = find_image_folders(self.config.data.name, self.config.data.path)
        if found is None:
            return super().open(network)
        return ImageFiles(*found, network.image, self.config, self.place, self.share)


TASKS.add("image_files", ImageFileTask)
