"""Test images as a trained model is shown them outside of its run, whole and corrupted, and its accuracy on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor, nn

from unsmooth.evidence.corruptions import NAMES, SEVERITIES, corrupt
from unsmooth.networks.config import ViTConfig
from unsmooth.training import Config
from unsmooth.training.augment.transforms import Normalise
from unsmooth.training.data.locate import find_images
from unsmooth.training.tasks.batches import in_batches

BATCH = 1000


@dataclass(frozen=True)
class Shown:
    """Which images: all that decides them, so that what is made of them for one model serves the next.

    Args:
        data: Name of the data set.
        path: Where it is, as in the run's settings.
        classes: How many.
        size: Height and width.
        test_limit: Of the run.
        count: How many of those the run is tested on, equally many of each class.
        device: Where they lie.
    """

    data: str
    path: str | None
    classes: int
    size: int
    test_limit: int | None
    count: int
    device: str

    @classmethod
    def of(cls, config: Config, device: torch.device, count: int) -> Shown:
        """Some of the images that a run on images is tested on."""
        network, data = cast(ViTConfig, config.network), config.data
        return cls(data.name, data.path, network.classes, network.image, data.test_limit, count, str(device))

    def images(self) -> tuple[Tensor, Tensor]:
        """(count, 3, height, width) uint8 and labels (count,)."""
        return _images(self)


@lru_cache(maxsize=2)
def _images(shown: Shown) -> tuple[Tensor, Tensor]:
    found = find_images(
        shown.data,
        shown.path,
        classes=shown.classes,
        size=shown.size,
        train_limit=shown.classes,  # not looked at
        test_limit=shown.test_limit,
    ).limited(test=shown.count)
    return found.test_images.to(shown.device), found.test_labels.to(shown.device)


def eyes(config: Config, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Bytes to what the model of a run on images reads."""
    assert config.augment is not None, "a run on images says how they are normalised"
    return Normalise(config.augment.mean, config.augment.std).to(device)


@torch.no_grad()
def accuracy(model: nn.Module, config: Config, images: Tensor, labels: Tensor) -> float:
    """Share of images that the model names rightly, in the precision that the run computed in."""
    see = eyes(config, images.device)
    lower = config.engine.precision == "bfloat16" and images.device.type == "cuda"
    right = 0
    for part in in_batches(len(images), BATCH):
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=lower):
            logits = model(see(images[part]))
        right += int((logits.argmax(1) == labels[part]).sum())
    return right / len(images)


def corrupted_accuracy(
    model: nn.Module,
    config: Config,
    device: torch.device,
    *,
    count: int,
    names: Iterable[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
) -> dict[str, list[float]]:
    """Accuracy at each severity, by corruption: the same images for every model.

    Args:
        model: A classifier of images, on the device.
        config: Of its run: says which images and how they are normalised.
        device: Where to compute.
        count: How many test images.
        names: Which corruptions; None for the fifteen standard ones.
        severities: Which severities.
    """
    shown = Shown.of(config, device, count)
    _, labels = shown.images()
    return {
        name: [accuracy(model, config, _corrupted(shown, name, severity), labels) for severity in severities]
        for name in (NAMES if names is None else names)
    }


@lru_cache(maxsize=128)
def _corrupted(shown: Shown, name: str, severity: int) -> Tensor:
    images, _ = shown.images()
    return corrupt(images, name, severity)
