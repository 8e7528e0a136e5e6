"""The four extra corruptions: speckle noise, Gaussian blur, spatter and saturation."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.evidence.corruptions.filters import gaussian
from unsmooth.evidence.corruptions.kind import Draws, corruption, whole_levels
from unsmooth.evidence.corruptions.liquid import relief

SPECKLE = (0.06, 0.1, 0.12, 0.16, 0.2)  # standard deviation in shares of the value
BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)  # standard deviation in pixels
# Mean and spread of the liquid, its smoothness, threshold, and the strength of water or the smoothness of mud.
SPATTER = (
    (0.62, 0.1, 0.7, 0.7, 0.5),
    (0.65, 0.1, 0.8, 0.7, 0.5),
    (0.65, 0.3, 1.0, 0.69, 0.5),
    (0.65, 0.1, 0.7, 0.69, 0.6),
    (0.65, 0.1, 0.5, 0.68, 0.6),
)
MUD_FROM = 4  # the severity at which water becomes mud
SATURATION = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))  # factor, then what is added
_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)


@corruption("extra")
def speckle_noise(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Adds to each value a share of itself: x + σ·x·ε with ε from the standard normal distribution."""
    return images + images * SPECKLE[severity - 1] * draws.normal("noise", *images.shape[1:])


@corruption("extra")
def gaussian_blur(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Correlation with a Gaussian."""
    return gaussian(images, BLUR[severity - 1])


@corruption("extra")
def spatter(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Drops of water that catch the light (severities 1 to 3) or of mud that hides what is behind (4 and 5)."""
    mean, spread, smoothness, threshold, last = SPATTER[severity - 1]
    size = images.shape[-1]
    liquid = gaussian(mean + spread * draws.normal("liquid", 1, size, size), smoothness)
    liquid = liquid.masked_fill(liquid < threshold, 0.0)
    if severity < MUD_FROM:
        drops = whole_levels(liquid)  # what is above full stays full; the original's bytes wrap round to dark
        light = drops * relief(drops)
        # The original divides by nothing where there is no drop at all, and gives a black image; here it stays as is.
        light = last * light / light.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1)
        return images + light * _colour(_WATER, images)
    cover = gaussian((liquid > threshold).to(images.dtype), last)
    cover = cover.masked_fill(cover < 0.8, 0.0)
    return images * (1 - cover) + cover * _colour(_MUD, images)


@corruption("extra")
def saturate(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """The saturation S of hue, saturation and value becomes S' = min(a·S + b, 1).

    With V = max(R, G, B) a colour is V·(1 − S·f), where f, from 0 for the largest channel to 1 for the smallest, holds
    the hue; so it becomes V·(1 − S'·f). Grey has the hue of red, as is usual: f = (0, 1, 1).
    """
    factor, added = SATURATION[severity - 1]
    value, least = images.amax(dim=1, keepdim=True), images.amin(dim=1, keepdim=True)
    spread = value - least
    hue = torch.where(spread > 0, (value - images) / spread.clamp(min=1e-9), _colour((0.0, 1.0, 1.0), images))
    saturation = spread / value.clamp(min=1e-9)
    return value * (1 - (factor * saturation + added).clamp(max=1) * hue)


def _colour(parts: tuple[float, float, float], images: Tensor) -> Tensor:
    return torch.tensor(parts, dtype=images.dtype, device=images.device)[:, None, None]
