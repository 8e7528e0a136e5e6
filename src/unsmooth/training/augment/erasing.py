"""Random rectangles of noise in place of a part of the image (Zhong et al. 2017, arXiv 1708.04896)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unsmooth import keyed
from unsmooth.errors import unknown_name
from unsmooth.training.augment.chance import happens, share

MODES = ("pixel", "rand", "const")
_ATTEMPTS = 10


class RandomErasing(nn.Module):
    """Erase a rectangle of normalised images, as timm does.

    Area and aspect ratio are drawn up to ten times, until the rectangle is smaller than the image both ways. Here all
    ten are drawn, and the first that fits is taken.

    Args:
        p: Share of images in which something is erased.
        mode: What comes in its place: "pixel", normal noise in each pixel; "rand", one normal colour; "const", zeros.
        smallest: Least share of the image's area.
        largest: Greatest share of it.
        aspect: Least ratio of height to width; the greatest is its inverse.

    Example:
        >>> from unsmooth import keyed
        >>> images = torch.ones(1, 3, 8, 8)
        >>> erased = RandomErasing(p=1.0, mode="const")(images, keyed.keys(0, torch.arange(1)))
        >>> 0 < (erased == 0).float().mean().item() < 1
        True
    """

    draws = 2 + 4 * _ATTEMPTS

    def __init__(
        self,
        p: float = 0.25,
        mode: str = "pixel",
        smallest: float = 0.02,
        largest: float = 1 / 3,
        aspect: float = 0.3,
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise unknown_name("mode of erasing", mode, MODES)
        self.p, self.mode = share(p, "p"), mode
        self.smallest, self.largest, self.aspect = share(smallest, "smallest"), share(largest, "largest"), aspect

    def forward(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        """One key per image."""
        return self.with_keys(images_BCHW, keyed.derive(keys_B, self.draws))

    def with_keys(self, images_BCHW: Tensor, keys_BK: Tensor) -> Tensor:
        """The same with `draws` keys per image."""
        height, width = images_BCHW.shape[2:]
        top, left, tall, wide = self.rectangles(keys_BK, height, width)[..., None].unbind(1)
        row = torch.arange(height, device=images_BCHW.device)
        column = torch.arange(width, device=images_BCHW.device)
        in_rows = (row >= top) & (row < top + tall)
        in_columns = (column >= left) & (column < left + wide)
        erased = in_rows[:, None, :, None] & in_columns[:, None, None, :]
        return torch.where(erased, self._replacement(images_BCHW, keys_BK[:, 1]), images_BCHW)

    def rectangles(self, keys_BK: Tensor, height: int, width: int) -> Tensor:
        """(B, 4): top, left, height and width of what is erased, the last two 0 where nothing is."""
        size, shape, down, right = keys_BK[:, 2:].reshape(-1, 4, _ATTEMPTS).unbind(1)
        area = _between(size, self.smallest, self.largest) * (height * width)
        ratio = _between(shape, math.log(self.aspect), -math.log(self.aspect)).exp()
        tall = (area * ratio).sqrt().round().to(torch.int64)
        wide = (area / ratio).sqrt().round().to(torch.int64)
        fits = (tall < height) & (wide < width)
        first = fits.to(torch.int8).argmax(dim=1, keepdim=True)
        top = (down * (height - tall + 1)) >> 32
        left = (right * (width - wide + 1)) >> 32
        taken = torch.stack([top, left, tall, wide], dim=1).gather(2, first[:, None].expand(-1, 4, -1))[..., 0]
        return torch.where((fits.any(1) & happens(keys_BK[:, 0], self.p))[:, None], taken, 0)

    def _replacement(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        if self.mode == "const":
            return torch.zeros_like(images_BCHW)
        shape = images_BCHW.shape[1:] if self.mode == "pixel" else (images_BCHW.shape[1], 1, 1)
        return keyed.normal(keyed.derive(keys_B, math.prod(shape))).view(-1, *shape).to(images_BCHW.dtype)


def _between(keys: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * keyed.uniform(keys).to(torch.float64)
