"""Classifying images: augmentation is part of the step, and so is gathering where the images are on the device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.networks.config import ViTConfig
from unsmooth.networks.pixels import Pixels
from unsmooth.training.augment.pipeline import Augment
from unsmooth.training.config import Config
from unsmooth.training.data.locate import find_images
from unsmooth.training.place import Place
from unsmooth.training.task import TASKS, Task, in_full, summed_over_processes
from unsmooth.training.tasks.dealing import dealt, in_parts, spread
from unsmooth.training.tasks.image_sources import ImageSource, ResidentImages

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
