"""What a corruption is: a function from clean images and keyed draws to damaged ones, under a name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth import keyed
from unsmooth.registry import Registry

SEVERITIES = (1, 2, 3, 4, 5)


class Draws:
    """Random numbers of one corruption for a batch: functions of seed, name, severity and image number, nothing else.

    Args:
        seed: Of the whole set of damaged images.
        name: Of the corruption.
        severity: From 1 to 5; each has draws of its own.
        sample: Image numbers, int64 (batch,).

    >>> both = Draws(0, "fog", 1, torch.tensor([4, 9])).uniform("height", 3)
    >>> torch.equal(both[1:], Draws(0, "fog", 1, torch.tensor([9])).uniform("height", 3))
    True
    """

    def __init__(self, seed: int, name: str, severity: int, sample: Tensor) -> None:
        self._keys_B = keyed.keys(keyed.stream(seed, f"corruption/{name}/{severity}"), sample)

    def uniform(self, purpose: str, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """float64 in [low, high), (batch, *shape)."""
        return low + (high - low) * keyed.uniform(self._keys(purpose, shape)).double()

    def normal(self, purpose: str, *shape: int) -> Tensor:
        """float64 from the standard normal distribution, (batch, *shape)."""
        return keyed.normal(self._keys(purpose, shape)).double()

    def integers(self, purpose: str, *shape: int, below: int) -> Tensor:
        """int64 in [0, below), (batch, *shape)."""
        return keyed.integers(self._keys(purpose, shape), below)

    def zeros(self, *shape: int) -> Tensor:
        """float64 zeros, (batch, *shape), where the draws are."""
        return torch.zeros(len(self._keys_B), *shape, dtype=torch.float64, device=self._keys_B.device)

    def _keys(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        of_purpose_B = keyed.keys(self._keys_B, keyed.stream(0, purpose))
        return keyed.derive(of_purpose_B, math.prod(shape)).reshape(-1, *shape)


Change = Callable[[Tensor, Draws, int], Tensor]


@dataclass(frozen=True)
class Corruption:
    """One way to damage images.

    Args:
        name: As in CIFAR-10-C.
        family: "noise", "blur", "weather", "digital" or "extra".
        change: From images, draws and severity to damaged images. Images are float64 (batch, 3, size, size) with
            values from 0 to 1; what comes back may leave that range and is clipped.
    """

    name: str
    family: str
    change: Change


CORRUPTIONS: Registry[Corruption] = Registry("corruption")


def corruption(family: str) -> Callable[[Change], Change]:
    """Register the function below under its own name."""

    def register(change: Change) -> Change:
        name = change.__name__
        CORRUPTIONS.add(name, Corruption(name, family, change))
        return change

    return register


def whole_levels(images: Tensor) -> Tensor:
    """From values between 0 and 1 to whole levels from 0 to 255, cut off as the original's conversion to bytes does.

    The hair that is added keeps a value that is a whole number in exact arithmetic from falling a level through
    rounding, which differs between devices and batch sizes.

    >>> whole_levels(torch.tensor([-0.1, 0.5, 1 / 255, 2.0], dtype=torch.float64))
    tensor([  0., 127.,   1., 255.], dtype=torch.float64)
    """
    return torch.floor(images.clamp(0, 1) * 255 + 1e-6)
