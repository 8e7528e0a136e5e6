"""Noise of every pixel and channel on its own: Gaussian, shot and impulse."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from unsmooth.evidence.corruptions.kind import Draws, corruption

GAUSSIAN = (0.04, 0.06, 0.08, 0.09, 0.10)  # standard deviation
PHOTONS = (500, 250, 100, 75, 50)  # mean count at full brightness
IMPULSE = (0.01, 0.02, 0.03, 0.05, 0.07)  # share of values that are lost


@corruption("noise")
def gaussian_noise(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Adds to each value: x + σ·ε with ε from the standard normal distribution."""
    return images + GAUSSIAN[severity - 1] * draws.normal("noise", *images.shape[1:])


@corruption("noise")
def shot_noise(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Poisson(c·x) / c: the count of photons at a brightness. Counts above c are clipped anyway and not told apart.

    By the inverse of the distribution function. Only 256 means can occur, so their distribution functions lie one
    after the other in a single rising table, and one search finds the count of every value.
    """
    photons = PHOTONS[severity - 1]
    level = torch.round(images * 255)
    chance = draws.uniform("count", *images.shape[1:])
    position = torch.searchsorted(_poisson_table(photons).to(images.device), level + chance, right=True)
    return (position - level.long() * photons) / photons


@corruption("noise")
def impulse_noise(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Salt and pepper: a share of the values becomes 1 or 0, with even chances."""
    share = IMPULSE[severity - 1]
    chance = draws.uniform("impulse", *images.shape[1:])
    return images.masked_fill(chance < share, 0.0).masked_fill(chance < share / 2, 1.0)


@lru_cache(maxsize=8)
def _poisson_table(photons: int) -> Tensor:
    """Entry level·photons + k is level + P(count ≤ k), for the 256 levels and k below `photons`.

    P(count ≤ k) at mean λ is the regularised upper incomplete gamma function Q(k + 1, λ).
    """
    level = torch.arange(256, dtype=torch.float64)[:, None]
    below = torch.special.gammaincc(torch.arange(1, photons + 1, dtype=torch.float64), level * photons / 255)
    table: Tensor = (level + below).flatten()
    return table
