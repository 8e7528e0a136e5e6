"""Accuracy on corrupted test images: what is made of them once is kept for the other models of a study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from unsmooth.evidence.corruptions import NAMES, SEVERITIES, corrupt
from unsmooth.evidence.shown import Shown, accuracy
from unsmooth.training import Config


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
