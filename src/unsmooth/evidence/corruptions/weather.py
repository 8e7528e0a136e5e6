"""Weather: snow, frost, fog and brightness."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.evidence.corruptions.filters import motion
from unsmooth.evidence.corruptions.fractal import plasma
from unsmooth.evidence.corruptions.kind import Draws, corruption, whole_levels
from unsmooth.evidence.corruptions.resampling import enlarged

# Mean and spread of the flakes, their enlargement, threshold, radius and spread of their motion, share of the image
# that is not whitened.
SNOW = (
    (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
)
FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))  # shares of the image and of the frost
FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))  # thickness, how fast its roughness decays
BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)  # added
_ICE = (0.78, 0.89, 1.0)  # red, green and blue of the procedural frost


@corruption("weather")
def snow(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Flakes that fall in a line, once as drawn and once turned by 180 degrees, on a whitened image."""
    mean, spread, enlargement, threshold, radius, sigma, kept = SNOW[severity - 1]
    size = images.shape[-1]
    flakes = enlarged(mean + spread * draws.normal("flakes", 1, size, size), enlargement)
    flakes = whole_levels(flakes.masked_fill(flakes < threshold, 0.0))
    falling = torch.round(motion(flakes, radius, sigma, draws.uniform("angle", low=-135, high=-45))) / 255
    luminance = torch.tensor([0.299, 0.587, 0.114], dtype=images.dtype, device=images.device)
    grey = (images * luminance[:, None, None]).sum(dim=1, keepdim=True)
    whitened = torch.maximum(images, 1.5 * grey + 0.5)
    return kept * images + (1 - kept) * whitened + falling + falling.flip(2, 3)


@corruption("weather")
def frost(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """a·x + b·frost, with a procedural frost.

    It is not the original's photographs, which are not shipped here, so accuracy on frost is not comparable.
    """
    of_image, of_frost = FROST[severity - 1]
    return of_image * images + of_frost * _ice(draws, images.shape[-1])


def _ice(draws: Draws, size: int) -> Tensor:
    """Ridges of a plasma and needles in three directions 60 degrees apart, (batch, 3, size, size) from 0 to 1."""
    ridges = 1 - (2 * plasma(draws, size, 2.0, "ridges") - 1).abs()
    film = plasma(draws, size, 2.5, "film")
    seeds = (draws.uniform("seeds", 1, size, size) < 0.04).to(film.dtype)
    turn = draws.uniform("turn", high=60)
    needles = torch.stack([motion(seeds, 5, 4.0, turn + 60 * side) for side in range(3)]).amax(dim=0)[:, 0]
    ice = (0.25 + 0.35 * film + 0.3 * ridges**2 + 2.5 * needles).clamp(max=1)
    return ice[:, None] * torch.tensor(_ICE, dtype=ice.dtype, device=ice.device)[:, None, None]


@corruption("weather")
def fog(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """A plasma is added and the whole scaled back to the brightest value v: (x + c·plasma)·v / (v + c)."""
    thickness, decay = FOG[severity - 1]
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    cloud = plasma(draws, images.shape[-1], decay, "cloud")[:, None]
    return (images + thickness * cloud) * brightest / (brightest + thickness)


@corruption("weather")
def brightness(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """The value V = max(R, G, B) of hue, saturation and value is raised to min(V + c, 1).

    At the same hue and saturation the colours grow in proportion to V; black becomes grey.
    """
    value = images.amax(dim=1, keepdim=True)
    raised = (value + BRIGHTNESS[severity - 1]).clamp(max=1)
    return torch.where(value > 0, images / value.clamp(min=1e-9), 1.0) * raised
