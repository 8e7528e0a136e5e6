"""Plain, sharpened and smoothed ViT-Ti on CIFAR-100: the runs behind most claims of P1.

Park & Kim's recipe with two cuts: patches of four pixels instead of two (65 tokens instead of 257), and 100 epochs
instead of 300. The learning rate is 5e-4 instead of 1.25e-4, for a third of the epochs; it was taken from the reference
run of 30 epochs, before any of these runs, and is the same for all variants. `sharpen` and `smooth` are the remedies
in the Gram form whose eigenvalues are rescaled (starting as near to the drawn weights as the interval allows).

Each trained model is looked at further: its accuracy on corrupted test images, and how much attention and MLP add to
the stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.branches import branch_shares
from unsmooth.evidence.corruptions import NAMES, SEVERITIES
from unsmooth.evidence.shown import Shown, accuracy, corrupted_accuracy, eyes
from unsmooth.evidence.studies.images import cut
from unsmooth.evidence.study import Study, study
from unsmooth.training import Config
from unsmooth.training.tasks.batches import spread

FULL = {
    "patch": 4,
    "epochs": 100,
    "lr": 5e-4,
    "measuring.every": 10,
    "measuring.at": (0.5, 1.0, 2.0, 5.0),
    "evaluate_every": 5,
    "checkpoint_every": 20,
}
IMAGES, BRANCH_IMAGES = 2000, 64
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "sharpen": ("sharpen(basis=gram, eigenvalues=rescale)",),
    "smooth": ("smooth(basis=gram, eigenvalues=rescale)",),
}


@study
class Steering(Study):
    """Three variants that differ in the eigenvalues that H may have."""

    name: ClassVar[str] = "steering"
    about: ClassVar[str] = "ViT-Ti on CIFAR-100, patch 4, 100 epochs: plain, sharpen, smooth"

    def configs(self, bench: Bench) -> dict[str, Config]:
        """The three."""
        base = cut("vit_cifar100", bench, FULL)
        return {variant: replace(base, remedies=remedies) for variant, remedies in VARIANTS.items()}

    def look(self, model: nn.Module, config: Config, device: torch.device) -> dict[str, Any]:
        """Accuracy on corrupted images by corruption and severity, and how much each branch adds to the stream."""
        limit = config.data.test_limit
        count = IMAGES if limit is None else max(20, limit // 10)
        made_up = config.data.name == "synthetic"  # nothing to learn there but that it runs
        names, severities = (NAMES[:2], SEVERITIES[::2]) if made_up else (NAMES, SEVERITIES)
        images, labels = Shown.of(config, device, count).images()
        probe = eyes(config, device)(images[spread(count, BRANCH_IMAGES)])
        return {
            "clean": accuracy(model, config, images, labels),
            "severities": list(severities),
            "corrupted": corrupted_accuracy(model, config, device, count=count, names=names, severities=severities),
            "branches": branch_shares(model, [probe]),
        }
