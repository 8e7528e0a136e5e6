"""What cameras and files do: contrast, elastic distortion, pixelation and JPEG."""

from __future__ import annotations

from io import BytesIO

import torch
from torch import Tensor

from unsmooth.evidence.corruptions.filters import gaussian
from unsmooth.evidence.corruptions.kind import Draws, corruption
from unsmooth.evidence.corruptions.resampling import box_resized, sampled

CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # what is left of it
# In sizes of the image: length of the displacements, their smoothness, reach of the corners that tilt the image.
ELASTIC = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)  # size in between
JPEG = (80, 65, 58, 50, 40)  # quality


@corruption("digital")
def contrast(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Drawn to the mean of each channel: m + c·(x − m)."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + CONTRAST[severity - 1] * (images - mean)


@corruption("digital")
def elastic_transform(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """A random tilt, then a smooth random displacement of every pixel.

    The tilt is the affine map that takes three corners of a square in the middle to corners moved at random. It is
    read with exact places; the original's tool rounds them to 1/32 of a pixel.
    """
    size = images.shape[-1]
    length, smoothness, reach = (size * part for part in ELASTIC[severity - 1])
    line = torch.arange(size, dtype=images.dtype, device=images.device)
    down_NN, right_NN = torch.meshgrid(line, line, indexing="ij")
    tilted = sampled(images, *_tilt(draws, size, reach, right_NN, down_NN), mirror_on_pixels=True)
    if not length:
        return tilted
    field = draws.uniform("displacement", 2, size, size, low=-1, high=1)
    shift = length * gaussian(field, smoothness, truncate=3, edge="reflect")
    return sampled(tilted, right_NN + shift[:, 0], down_NN + shift[:, 1], mirror_on_pixels=False)


def _tilt(draws: Draws, size: int, reach: float, right_NN: Tensor, down_NN: Tensor) -> tuple[Tensor, Tensor]:
    """Where each pixel of the tilted image is read: the map from the moved corners back to the corners."""
    middle, half = size // 2, size // 3
    corners = [[middle + half, middle + half], [middle + half, middle - half], [middle - half, middle - half]]
    before = torch.tensor(corners, dtype=right_NN.dtype, device=right_NN.device)
    after = before + draws.uniform("corners", 3, 2, low=-reach, high=reach)
    map_B32 = torch.linalg.solve(torch.cat((after, torch.ones_like(after[..., :1])), dim=-1), before.expand_as(after))
    right_B2, down_B2, start_B2 = (part[..., None, None] for part in map_B32.unbind(1))
    places = right_B2 * right_NN + down_B2 * down_NN + start_B2
    return places[:, 0], places[:, 1]


@corruption("digital")
def pixelate(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Made smaller over boxes and large again, bit by bit as Pillow does."""
    size = images.shape[-1]
    small = box_resized(torch.round(images * 255), int(size * PIXELATE[severity - 1]))
    return box_resized(small, size) / 255


@corruption("digital")
def jpeg_compression(images: Tensor, draws: Draws, severity: int) -> Tensor:
    """Written as a JPEG file and read again, by Pillow, image by image on the CPU."""
    import numpy
    from PIL import Image

    levels = torch.round(images * 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    damaged = numpy.empty_like(levels)
    for number, image in enumerate(levels):
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=JPEG[severity - 1])
        damaged[number] = numpy.asarray(Image.open(file))
    return torch.from_numpy(damaged).permute(0, 3, 1, 2).to(images) / 255
