"""The light on drops of water: edges of the drops, distance to them, and a slope across it.

The steps are those of the original, which takes them from OpenCV: Canny's edges, a chamfer distance, an equalised
histogram and an emboss filter, each on whole levels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from unsmooth.evidence.corruptions.filters import correlate

_LOW, _HIGH = 50, 150  # Canny's thresholds on |∂x| + |∂y|
_FARTHEST = 20
_BOX = torch.full((3, 3), 1 / 9, dtype=torch.float64)
_EMBOSS = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
# Steps of a 5 by 5 chamfer mask and their lengths (Borgefors 1986, "Distance transformations in digital images").
_STEPS = [
    (down, right, 2.1969 if {abs(down), abs(right)} == {1, 2} else 1.4 if abs(down) == abs(right) else 1.0)
    for down in range(-2, 3)
    for right in range(-2, 3)
    if math.gcd(down, right) == 1
]


def relief(drops: Tensor) -> Tensor:
    """Whole levels from 0 to 255 of the light on drops, (batch, 1, size, size), from drops in whole levels.

    >>> relief(torch.zeros(1, 1, 8, 8, dtype=torch.float64)).unique()  # no edge: all as far as can be
    tensor([20.], dtype=torch.float64)
    """
    near = chamfer_distance(edges(drops)).clamp(max=_FARTHEST)
    # A constant field may come out a rounding error below its whole number.
    smooth = torch.floor(correlate(near, _BOX) + 1e-6)
    embossed = correlate(equalised(smooth), _EMBOSS).clamp(0, 255)
    return torch.round(correlate(embossed, _BOX))


def edges(levels: Tensor) -> Tensor:
    """Canny's edges, bool (batch, 1, size, size): local maxima of the slope, joined from strong through weak ones.

    Canny 1986, "A computational approach to edge detection"; slopes by Sobel's filter, without smoothing before.
    """
    padded = functional.pad(levels, (1, 1, 1, 1), mode="replicate")
    smooth_down = padded[..., :-2, :] + 2 * padded[..., 1:-1, :] + padded[..., 2:, :]
    smooth_right = padded[..., :-2] + 2 * padded[..., 1:-1] + padded[..., 2:]
    right = smooth_down[..., 2:] - smooth_down[..., :-2]
    down = smooth_right[..., 2:, :] - smooth_right[..., :-2, :]
    slope = right.abs() + down.abs()
    weak = (slope > _LOW) & _is_ridge(slope, right, down)
    found = weak & (slope > _HIGH)
    while True:
        grown = weak & (functional.max_pool2d(found.to(levels.dtype), 3, stride=1, padding=1) > 0)
        if torch.equal(grown, found):
            return found
        found = grown


def _is_ridge(slope: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """Whether the slope is largest along its own direction, of which there are four; ties go to the first pixel."""
    padded = functional.pad(slope, (1, 1, 1, 1))
    size = slope.shape[-1]

    def neighbour(rows: int, columns: int) -> Tensor:
        return padded[..., 1 + rows : 1 + rows + size, 1 + columns : 1 + columns + size]

    tangent = math.tan(math.pi / 8)
    flat = down.abs() < tangent * right.abs()
    steep = down.abs() > (tangent + 2) * right.abs()  # tan 67.5° = tan 22.5° + 2
    across = (slope > neighbour(0, -1)) & (slope >= neighbour(0, 1))
    along = (slope > neighbour(-1, 0)) & (slope >= neighbour(1, 0))
    falling = (slope > neighbour(-1, -1)) & (slope > neighbour(1, 1))
    rising = (slope > neighbour(-1, 1)) & (slope > neighbour(1, -1))
    slanted = torch.where((right < 0) != (down < 0), rising, falling)
    return torch.where(flat, across, torch.where(steep, along, slanted))


def chamfer_distance(marked: Tensor) -> Tensor:
    """Length of the shortest way to a marked pixel in steps of 1, 1.4 and 2.1969, as float64; right up to 20.

    >>> marked = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    >>> marked[..., 0, 0] = True
    >>> chamfer_distance(marked)[0, 0, 1]
    tensor([1.0000, 1.4000, 2.1969, 3.1969], dtype=torch.float64)
    """
    far = 2.0 * _FARTHEST
    size = marked.shape[-1]
    distance = torch.where(marked, 0.0, far).double()
    for _ in range(_FARTHEST):  # no step is shorter than 1
        padded = functional.pad(distance, (2, 2, 2, 2), value=far)
        for down, right, length in _STEPS:
            shifted = padded[..., 2 + down : 2 + down + size, 2 + right : 2 + right + size]
            distance = torch.minimum(distance, shifted + length)
    return distance


def equalised(levels: Tensor) -> Tensor:
    """Whole levels from 0 to 20 spread over 0 to 255 so that their cumulative shares rise evenly; the least becomes 0.

    >>> equalised(torch.tensor([[[[3.0, 5.0], [5.0, 9.0]]]], dtype=torch.float64))
    tensor([[[[  0., 170.],
              [170., 255.]]]], dtype=torch.float64)
    """
    flat = levels.flatten(1).long()
    counts = functional.one_hot(flat, _FARTHEST + 1).sum(dim=1)
    least = flat.amin(dim=1, keepdim=True)
    of_least = counts.gather(1, least)
    above = (counts.cumsum(dim=1) - of_least).clamp(min=0)
    table = torch.round(above * 255 / (flat.shape[1] - of_least).clamp(min=1))
    spread = table.gather(1, flat).to(levels.dtype)
    return torch.where(of_least == flat.shape[1], flat.to(levels.dtype), spread).view_as(levels)
