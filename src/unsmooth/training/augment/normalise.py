"""Grey levels to the numbers that a network reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unsmooth.errors import expected


class Normalise(nn.Module):
    r"""Bytes to :math:`(x / 255 - \mu) / \sigma` per channel.

    Args:
        mean: Mean of each channel over the data set, with white as 1.
        std: Standard deviation of each channel.
        dtype: Of what comes out.

    Example:
        >>> image = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)
        >>> Normalise([0.5], [0.25])(image).flatten().tolist()
        [-2.0, 2.0]
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise expected("a mean and a positive std for each channel", f"{mean} and {std}", "std=(0.25, 0.25, 0.25)")
        self.dtype = dtype
        per_channel = (1, -1, 1, 1)
        self.register_buffer("centre", 255 * torch.tensor(mean).view(per_channel), persistent=False)
        self.register_buffer("spread", 255 * torch.tensor(std).view(per_channel), persistent=False)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """In float32 until the last step."""
        return ((images_BCHW.to(torch.float32) - self.centre) / self.spread).to(self.dtype)
