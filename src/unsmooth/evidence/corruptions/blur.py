"""Blur: out of focus, behind frosted glass, in motion, and while zooming."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from unsmooth.evidence.corruptions.filters import correlate, disk, gaussian, motion
from unsmooth.evidence.corruptions.kind import Draws, corruption, whole_levels
from unsmooth.evidence.corruptions.resampling import enlarged

DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))  # radius of the disk, its softness
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))  # standard deviation of the blur, rounds of moves
MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))  # radius, standard deviation
ZOOM_ENDS = (1.06, 1.11, 1.16, 1.21, 1.26)  # of zooms from 1 in steps of 0.01


@corruption("blur")
def defocus_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Correlation with a disk."""
    return correlate(images, disk(*DEFOCUS[severity - 1]))


@corruption("blur")
def glass_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Blur, then pixels moved by up to one place, then blur again.

    The original means to exchange each pixel with a neighbour up or left of it, from the last row and column to the
    third. But it exchanges two views of one array, so the second assignment reads what the first has written: each
    pixel takes its neighbour's value, and the neighbour keeps it. What that code does is done here, not what it means
    to do. A neighbour up or left is visited later, so all pixels of a round can be moved at once.
    """
    sigma, rounds = GLASS[severity - 1]
    levels = whole_levels(gaussian(images, sigma))
    size = images.shape[-1]
    line = torch.arange(size, device=images.device)
    inside = (line[:, None] >= 2) & (line >= 2)
    for turn in range(rounds):
        up, left = draws.integers(f"move {turn}", 2, size, size, below=2).unbind(1)
        rows, columns = line[:, None] - up * inside, line - left * inside
        places = (rows * size + columns).flatten(1)[:, None].expand(-1, images.shape[1], -1)
        levels = levels.flatten(2).gather(2, places).view_as(levels)
    return gaussian(levels / 255, sigma)


@corruption("blur")
def motion_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Blur along a line within 45 degrees of the rows. Rounded to whole levels, as the original's tool does."""
    blurred = motion(images, *MOTION[severity - 1], draws.uniform("angle", low=-45, high=45))
    return torch.round(blurred * 255) / 255


@corruption("blur")
def zoom_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """The mean of the image and of its enlargements, the first of which is the image again."""
    # The original's own range: whether its end is in, and which way a half pixel goes, is decided by its last digits.
    factors = numpy.arange(1, ZOOM_ENDS[severity - 1], 0.01).tolist()
    total = images.clone()
    for factor in factors:
        total += enlarged(images, factor)
    return total / (len(factors) + 1)
