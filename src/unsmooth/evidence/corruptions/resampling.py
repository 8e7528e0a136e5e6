"""Images drawn at other places: enlarged, averaged over boxes, moved by a field."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from unsmooth.evidence.corruptions.filters import along_both_axes


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
