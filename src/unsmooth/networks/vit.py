"""Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.networks.block import Blocks, layer_norm
from unsmooth.networks.config import ViTConfig
from unsmooth.networks.dropping import Dropout, keys_for
from unsmooth.networks.embedding import sinusoids
from unsmooth.networks.inits import Initialised


class ViT(Initialised):
    """Patches in, logits of classes out.

    Args:
        config: What it is made of.
        seed: The same seed gives the same weights.

    Example:
        >>> model = ViT(ViTConfig(depth=2, dim=8, heads=2, hidden=16, image=8, patch=4, classes=5))
        >>> model(torch.zeros(3, 3, 8, 8)).shape
        torch.Size([3, 5])
    """

    def __init__(self, config: ViTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        # A linear map of flattened patches is the convolution of that stride, and one product.
        self.patches = nn.Linear(config.channels * config.patch**2, config.dim)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.dim)) if config.pooling == "class" else None
        self.positions = nn.Parameter(torch.zeros(1, config.patches + self.prefix_tokens, config.dim))
        self.dropout = Dropout(config.dropout, place=0)
        self.stack = Blocks(config)
        self.norm = nn.Identity() if config.norm == "post" else layer_norm(config)
        self.head = nn.Linear(config.dim, config.classes)
        self.start(seed)

    @property
    def prefix_tokens(self) -> int:
        """Tokens that are no patches, in front."""
        return 0 if self.class_token is None else 1

    def grid_positions(self) -> None:
        """Have positions start as sinusoids, one half of the channels by row and one by column."""
        side, half = self.config.image // self.config.patch, self.config.dim // 2
        place_N = torch.arange(side * side)
        rows, columns = sinusoids(place_N // side, half), sinusoids(place_N % side, self.config.dim - half)
        with torch.no_grad():
            self.positions[:, : self.prefix_tokens].zero_()
            self.positions[:, self.prefix_tokens :].copy_(torch.cat([rows, columns], dim=-1))

    def forward(self, pixel_values: Tensor, keys: Tensor | None = None) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, height, width).

        Args:
            pixel_values: The images, normalised.
            keys: (batch,) int64, one random key per sample, for dropout and stochastic depth.
        """
        keys = keys_for(self, self.config.dropout, self.config.drop_path, keys, pixel_values)
        x_BND = self.stack(self.embedded(pixel_values, keys), None, keys)
        # Norms act on each token by itself: where one token is read, one is normalised.
        pooled = self.norm(x_BND).mean(dim=1) if self.class_token is None else self.norm(x_BND[:, 0])
        logits: Tensor = self.head(pooled)
        return logits

    def hidden(self, pixel_values: Tensor, keys: Tensor | None = None) -> Tensor:
        """Tokens (batch, tokens, dim) after the last norm."""
        keys = keys_for(self, self.config.dropout, self.config.drop_path, keys, pixel_values)
        out: Tensor = self.norm(self.stack(self.embedded(pixel_values, keys), None, keys))
        return out

    def embedded(self, pixel_values: Tensor, keys: Tensor | None) -> Tensor:
        """Tokens (batch, tokens, dim) before the first block."""
        x_BND = self.patches(patches_of(pixel_values, self.config.patch))
        if self.class_token is not None:
            first = self.class_token.to(x_BND.dtype).expand(x_BND.shape[0], -1, -1)
            x_BND = torch.cat([first, x_BND], dim=1)
        out: Tensor = self.dropout(x_BND + self.positions, keys)
        return out


def patches_of(images_BCHW: Tensor, side: int) -> Tensor:
    """Patches (batch, patches, channels · side · side), row by row, each as a convolution's weight lies.

    >>> patches_of(torch.arange(8.0).view(1, 1, 2, 4), 2)
    tensor([[[0., 1., 4., 5.],
             [2., 3., 6., 7.]]])
    """
    cut = torch.unflatten(torch.unflatten(images_BCHW, -2, (-1, side)), -1, (-1, side))
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
