"""Images in float64 filtered and drawn at other places: Gaussian, disk, line, enlarged, averaged over boxes, moved."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Edge = Literal["nearest", "reflect"]


def along_both_axes(matrix: Tensor, images: Tensor) -> Tensor:
    """The same matrix (out, size) on the rows and on the columns of images (…, size, size).

    >>> along_both_axes(torch.ones(1, 2), torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([[[10.]]])
    """
    matrix = matrix.to(images.device, images.dtype)
    return matrix @ images @ matrix.T


def gaussian(images: Tensor, sigma: float, truncate: float = 4.0, edge: Edge = "nearest") -> Tensor:
    """Gaussian blur, with the kernel cut off at `truncate` standard deviations as scipy's is.

    >>> impulse = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    >>> impulse[..., 4, 4] = 1
    >>> gaussian(impulse, 0.5)[0, 0, 4, 3:6]
    tensor([0.0837, 0.6187, 0.0837], dtype=torch.float64)
    """
    return along_both_axes(_gaussian_matrix(images.shape[-1], sigma, truncate, edge), images)


@lru_cache(maxsize=64)
def _gaussian_matrix(size: int, sigma: float, truncate: float, edge: Edge) -> Tensor:
    reach = int(truncate * sigma + 0.5) if sigma > 0 else 0
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2) if sigma > 0 else torch.ones(1, dtype=torch.float64)
    columns = torch.arange(size)[:, None] + offsets
    if edge == "nearest":
        columns = columns.clamp(0, size - 1)
    else:  # d c b a | a b c d | d c b a
        columns = columns % (2 * size)
        columns = torch.minimum(columns, 2 * size - 1 - columns)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    return matrix.scatter_add_(1, columns, (weights / weights.sum()).expand_as(columns))


def disk(radius: float, softness: float) -> Tensor:
    """An even disk, softened by a Gaussian on 3 by 3 points with the standard deviation `softness`.

    >>> disk(1, 0.01)[1:4, 1:4]
    tensor([[0.0000, 0.2000, 0.0000],
            [0.2000, 0.2000, 0.2000],
            [0.0000, 0.2000, 0.0000]], dtype=torch.float64)
    """
    reach = math.floor(radius) + 1  # one more for the softening
    line = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (line[:, None] ** 2 + line**2 <= radius**2).double()
    bell = torch.exp(-(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64) ** 2) / (2 * softness**2))
    bell = bell / bell.sum()
    soft = functional.conv2d(inside[None, None], (bell[:, None] * bell)[None, None], padding=1)
    return soft[0, 0] / inside.sum()


def correlate(images: Tensor, kernel: Tensor) -> Tensor:
    """Correlation with a small odd square kernel; at the edge the image goes on as its mirror: d c b | a b c d | c b a.

    Shifted sums rather than a convolution of the library: they add in one order on every device and batch size.

    >>> correlate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 0, 0]]))
    tensor([[[[2., 1.],
              [4., 3.]]]])
    """
    size, reach = images.shape[-1], kernel.shape[-1] // 2
    padded = functional.pad(images, (reach, reach, reach, reach), mode="reflect")
    total = torch.zeros_like(images)
    for row, weights in enumerate(kernel.tolist()):
        for column, weight in enumerate(weights):
            if weight:
                total += weight * padded[..., row : row + size, column : column + size]
    return total


def motion(images: Tensor, radius: int, sigma: float, degrees_B: Tensor) -> Tensor:
    """Blur along a line that starts at each pixel, with weights that fall as half a Gaussian.

        y[p] = Σᵢ wᵢ · x[p + round(i · (cos θ, sin θ))],   wᵢ ∝ exp(−i² / 2σ²),   i = 0 … 2 · radius

    This is ImageMagick's motion blur, which the original calls: steps of whole pixels, edge pixels repeated.

    Args:
        images: (batch, channels, size, size).
        radius: Half the length of the line.
        sigma: Standard deviation of the weights, in pixels.
        degrees_B: Direction for each image; 0 is along a row, 90 down a column.

    >>> line = torch.tensor([[[[0.0, 0.0, 1.0]] * 3]], dtype=torch.float64)
    >>> motion(line, 1, 1.0, torch.tensor([0.0]))[0, 0, 0]
    tensor([0.0777, 0.4259, 1.0000], dtype=torch.float64)
    """
    steps = torch.arange(2 * radius + 1, dtype=torch.float64, device=images.device)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    angle_B1 = torch.deg2rad(degrees_B.double())[:, None]
    right_BI, down_BI = ((torch.ceil(steps * part - 0.5)).long() for part in (angle_B1.cos(), angle_B1.sin()))
    batch, channels, size, _ = images.shape
    flat, line = images.flatten(2), torch.arange(size, device=images.device)
    total = torch.zeros_like(flat)
    for index, weight in enumerate((weights / weights.sum()).tolist()):
        rows_BN = (line + down_BI[:, index, None]).clamp(0, size - 1)
        columns_BN = (line + right_BI[:, index, None]).clamp(0, size - 1)
        places = (rows_BN[:, :, None] * size + columns_BN[:, None, :]).reshape(batch, 1, -1)
        total += weight * flat.gather(2, places.expand(-1, channels, -1))
    return total.view_as(images)


def enlarged(images: Tensor, factor: float) -> Tensor:
    """The middle of the image, enlarged by `factor` ≥ 1 to the size of the whole, with straight lines between pixels.

    The first and last pixels of the middle stay first and last, as in ``scipy.ndimage.zoom(order=1)``.

    >>> row = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    >>> enlarged(row.expand(1, 1, 4, 4), 2.0)[0, 0, 0]
    tensor([1.0000, 1.3333, 1.6667, 2.0000], dtype=torch.float64)
    """
    return along_both_axes(_enlarging_matrix(images.shape[-1], factor), images)


@lru_cache(maxsize=64)
def _enlarging_matrix(size: int, factor: float) -> Tensor:
    kept = math.ceil(size / factor)
    first = (size - kept) // 2
    grown = round(kept * factor)
    cut = (grown - size) // 2
    place = torch.arange(cut, cut + size, dtype=torch.float64) * ((kept - 1) / max(grown - 1, 1))
    left = place.floor().clamp(0, max(kept - 2, 0)).long()
    share = (place - left)[:, None]
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix.scatter_(1, first + left[:, None], 1 - share)
    return matrix.scatter_add_(1, first + (left[:, None] + 1).clamp(max=kept - 1), share)


_FIXED_POINT = 2.0**22  # Pillow's weights are whole multiples of 2⁻²²


def box_resized(levels: Tensor, size: int) -> Tensor:
    """Whole levels averaged over boxes to (…, size, size), with the rounding of Pillow: equal to it bit by bit.

    >>> box_resized(torch.tensor([[[[0.0, 1.0], [2.0, 4.0]]]], dtype=torch.float64), 1)
    tensor([[[[2.]]]], dtype=torch.float64)
    """
    weights = _box_matrix(levels.shape[-1], size).to(levels.device)
    # Whole numbers far below 2⁵³: the products are exact. Pillow rounds after the rows, and again after the columns.
    across = torch.floor((levels @ weights.T + _FIXED_POINT / 2) / _FIXED_POINT)
    return torch.floor((weights @ across + _FIXED_POINT / 2) / _FIXED_POINT)


@lru_cache(maxsize=64)
def _box_matrix(before: int, after: int) -> Tensor:
    scale = before / after
    width = max(scale, 1.0)
    centre = ((torch.arange(after, dtype=torch.float64) + 0.5) * scale)[:, None]
    pixel = torch.arange(before, dtype=torch.float64)[None]
    first = torch.trunc(centre - width / 2 + 0.5).clamp(min=0)
    last = torch.trunc(centre + width / 2 + 0.5).clamp(max=before)
    offset = (pixel - centre + 0.5) * (1 / width)
    inside = (pixel >= first) & (pixel < last) & (offset > -0.5) & (offset <= 0.5)
    share = inside.double() / inside.sum(dim=1, keepdim=True)
    return torch.floor(0.5 + share * _FIXED_POINT)


def sampled(images: Tensor, right_BNN: Tensor, down_BNN: Tensor, mirror_on_pixels: bool) -> Tensor:
    """Images read at given places, with straight lines between pixels.

    Args:
        images: (batch, channels, size, size).
        right_BNN: Column to read at for each pixel, as a float.
        down_BNN: Row to read at.
        mirror_on_pixels: Beyond the edge the image is mirrored: at the centre of the last pixel (c b | a b c) when
            true, at its outer side (b a | a b c) when false.

    >>> image = torch.arange(4.0).view(1, 1, 2, 2)
    >>> sampled(image, torch.tensor([[[0.5, 1.0]] * 2]), torch.tensor([[[0.0, 0.0], [1.0, 2.0]]]), True)[0, 0]
    tensor([[0.5000, 1.0000],
            [2.5000, 1.0000]])
    """
    size = images.shape[-1]
    places = torch.stack((right_BNN, down_BNN), dim=-1)
    scaled = 2 * places / max(size - 1, 1) - 1 if mirror_on_pixels else (2 * places + 1) / size - 1
    return functional.grid_sample(
        images, scaled, mode="bilinear", padding_mode="reflection", align_corners=mirror_on_pixels
    )
