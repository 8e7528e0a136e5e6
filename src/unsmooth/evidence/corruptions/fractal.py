"""Plasma: a random landscape with the same roughness at every scale, made by midpoint displacement."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.evidence.corruptions.kind import Draws


def plasma(draws: Draws, size: int, decay: float, purpose: str) -> Tensor:
    """Heights from 0 to 1 for each image, (batch, size, size), by the diamond-square algorithm on a torus.

    Fournier, Fussell, Carpenter 1982, "Computer rendering of stochastic models". From one point on, every round fills
    the middles of the squares and then the middles of their sides with the mean of four neighbours plus a draw from
    [−a², a²); a is divided by `decay` after each round (the square of a is the original's).

    Args:
        draws: Random numbers.
        size: Of the images; the landscape is made at the next power of two and cut.
        decay: The larger, the smoother.
        purpose: Names the draws.

    >>> height = plasma(Draws(0, "fog", 1, torch.arange(2)), 32, 2.0, "cloud")
    >>> height.shape, height.amin().item(), height.amax().item()
    (torch.Size([2, 32, 32]), 0.0, 1.0)
    """
    side = 1 << max(size - 1, 1).bit_length()
    height, amplitude = draws.zeros(1, 1), 1.0
    while height.shape[-1] < side:
        height = _refined(height, draws, amplitude**2, f"{purpose}/{height.shape[-1]}")
        amplitude /= decay
    low, high = height.amin(dim=(1, 2), keepdim=True), height.amax(dim=(1, 2), keepdim=True)
    return ((height - low) / (high - low))[:, :size, :size]


def _refined(corner: Tensor, draws: Draws, amplitude: float, purpose: str) -> Tensor:
    """Twice as many points on each side: the old ones, the middles of squares, and the middles of their sides."""
    batch, points, _ = corner.shape
    noise = draws.uniform(purpose, 3, points, points, low=-amplitude, high=amplitude)
    below, right = corner.roll(-1, 1), corner.roll(-1, 2)
    middle = (corner + below + right + below.roll(-1, 2)) / 4 + noise[:, 0]
    top = (corner + right + middle + middle.roll(1, 1)) / 4 + noise[:, 1]
    left = (corner + below + middle + middle.roll(1, 2)) / 4 + noise[:, 2]
    finer = torch.empty(batch, 2 * points, 2 * points, dtype=corner.dtype, device=corner.device)
    finer[:, ::2, ::2], finer[:, 1::2, 1::2] = corner, middle
    finer[:, ::2, 1::2], finer[:, 1::2, ::2] = top, left
    return finer
