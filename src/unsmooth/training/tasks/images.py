"""Classifying images that live on the device: gather, augmentation and forward pass are all part of the step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unsmooth import keyed
from unsmooth.errors import expected
from unsmooth.networks.config import ViTConfig
from unsmooth.training.augment.pipeline import Augment
from unsmooth.training.config import Config
from unsmooth.training.data.locate import find_images
from unsmooth.training.order import Order
from unsmooth.training.place import Place
from unsmooth.training.task import TASKS, Task, in_batches, in_full, own_slices, summed_over_processes

_EVALUATION_BATCH = 500


class ImageTask(Task):
    """Cross-entropy on (mixed, smoothed) labels of augmented images; accuracy on plain ones."""

    name = "images"
    better = {"loss": False, "accuracy": True}

    def __init__(self, config: Config, place: Place, share: int) -> None:
        super().__init__(config, place, share)
        if config.augment is None:
            raise expected("augment settings for images", "none", "AugmentConfig() in the recipe")
        network = config.network
        if not isinstance(network, ViTConfig):
            raise expected("a ViT for images", type(network).__name__, "network=ViTConfig(...)")
        self.images = images = find_images(
            config.data.name,
            config.data.path,
            classes=network.classes,
            size=network.image,
            train_limit=config.data.train_limit,
            test_limit=config.data.test_limit,
        ).to(place.device)
        if images.classes != network.classes:
            raise expected(f"{images.classes} classes, as in {images.name}", network.classes, "--set network.classes=…")
        self.augment: nn.Module = Augment(config.augment).to(place.device)
        self.order = Order(len(images.train_images), share, config.seed, place, config.repeats)
        self._augmenting = keyed.stream(config.seed, "augment")
        self._mixing = keyed.stream(config.seed, "mix")
        self._dropping = keyed.stream(config.seed, "drop")

    @property
    def batches(self) -> int:
        """Whole batches in an epoch."""
        return self.order.batches

    def begin(self, batch: int) -> None:
        """Shuffle where an epoch begins, or where a run is taken up inside one."""
        self.order.begin(batch // self.batches)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Gather, augment, classify."""
        epoch = batch // self.batches
        chosen = self.order.take(batch % self.batches)
        images, targets = self.augment(
            self.images.train_images[chosen],
            self.images.train_labels[chosen],
            keyed.keys(self._augmenting, epoch, chosen, self.order.copy),
            keyed.keys(self._mixing, batch),
        )
        dropping = keyed.keys(self._dropping, epoch, chosen, self.order.copy)
        logits = in_full(model(images.to(self.dtype), keys=dropping))
        return F.cross_entropy(logits, targets.to(logits.dtype))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss and accuracy on the test set."""
        images, labels = self.images.test_images, self.images.test_labels
        sums = torch.zeros(3, dtype=torch.float64, device=images.device)
        for part in own_slices(in_batches(len(images), _EVALUATION_BATCH), self.place):
            logits = in_full(model(self.augment.normalise(images[part]).to(self.dtype)))
            right = (logits.argmax(1) == labels[part]).sum()
            sums += torch.stack(
                [F.cross_entropy(logits, labels[part], reduction="sum"), right, right * 0 + len(logits)]
            )
        loss, right, count = summed_over_processes(sums, self.place).tolist()
        return {"loss": loss / count, "accuracy": right / count}

    def probe(self, sequences: int) -> Any:
        """The first test images, spread over the classes, as the model sees them."""
        images = self.images.test_images
        spread = torch.linspace(0, len(images) - 1, min(sequences, len(images)), device=images.device).long()
        return [self.augment.normalise(images[part]).to(self.dtype) for part in spread.split(64)]

    def describe(self) -> dict[str, Any]:
        """Which images, and how many."""
        images = self.images
        return {
            "name": images.name,
            "synthetic": images.synthetic,
            "digest": images.digest,
            "train": len(images.train_images),
            "test": len(images.test_images),
            "classes": images.classes,
        }


TASKS.add("images", ImageTask)
