"""Left and right exchanged in some images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth import keyed
from unsmooth.training.augment.chance import happens, share


class RandomFlip(nn.Module):
    """Mirror each image with probability `p`.

    Args:
        p: Share of images that are mirrored.

    Example:
        >>> from unsmooth import keyed
        >>> image = torch.arange(4, dtype=torch.uint8).expand(1, 3, 1, 4)
        >>> RandomFlip(p=1.0)(image, keyed.keys(0, torch.arange(1)))[0, 0].tolist()
        [[3, 2, 1, 0]]
    """

    draws = 1

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = share(p, "p")

    def forward(self, images_BCHW: Tensor, keys_B: Tensor) -> Tensor:
        """One key per image."""
        return self.with_keys(images_BCHW, keyed.derive(keys_B, self.draws))

    def with_keys(self, images_BCHW: Tensor, keys_BK: Tensor) -> Tensor:
        """The same with `draws` keys per image."""
        return torch.where(happens(keys_BK[:, 0], self.p)[:, None, None, None], images_BCHW.flip(-1), images_BCHW)
