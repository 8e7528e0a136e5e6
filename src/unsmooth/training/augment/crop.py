"""A window of the image's own size, at a random place of the image with a border around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from unsmooth import keyed
from unsmooth.errors import expected


class RandomCrop(nn.Module):
    """Shift images by up to `pad` pixels each way, all shifts alike; what comes in from outside is `fill`.

    Args:
        pad: Width of the border.
        fill: Grey level of the border, the same for all channels.

    Example:
        >>> from unsmooth import keyed
        >>> images = torch.full((2, 3, 8, 8), 200, dtype=torch.uint8)
        >>> RandomCrop(pad=4)(images, keyed.keys(0, torch.arange(2))).shape
        torch.Size([2, 3, 8, 8])
    """

    draws = 2

    def __init__(self, pad: int = 4, fill: int = 0) -> None:
        super().__init__()
        if pad < 0:
            raise expected("a border of 0 pixels or more", pad, "pad=4")
        self.pad, self.fill = pad, fill

    def forward(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        """One key per image."""
        return self.with_keys(images_BCHW, keyed.derive(keys_B, self.draws))

    def with_keys(self, images_BCHW: Tensor, keys_BK: Tensor) -> Tensor:
        """The same with `draws` keys per image, for callers who derive the keys of many steps at once."""
        batch, channels, height, width = images_BCHW.shape
        wide = width + 2 * self.pad
        padded = F.pad(images_BCHW, (self.pad,) * 4, value=self.fill).flatten(2)
        corner_B2 = keyed.integers(keys_BK, 2 * self.pad + 1)
        rows_BH = corner_B2[:, :1] + torch.arange(height, device=images_BCHW.device)
        columns_BW = corner_B2[:, 1:] + torch.arange(width, device=images_BCHW.device)
        place = (rows_BH[:, :, None] * wide + columns_BW[:, None, :]).flatten(1)
        return padded.gather(2, place[:, None].expand(-1, channels, -1)).view(batch, channels, height, width)
