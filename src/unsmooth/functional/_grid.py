"""Tokens as the picture they were cut from.

Shape suffixes: B sequences, N tokens, D dimensions; Y rows and X columns of the grid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional._tokens import Tokens

Grid = tuple[int, int]
"""Height and width in tokens."""


def on_grid(tokens: Tokens, grid: Grid | None) -> tuple[Tensor, Tensor]:
    """The real tokens of each sequence, row by row, as (batch, height, width, dim), and which sequences fill the grid.

    Masked tokens, such as class tokens and registers, are left out wherever they are. A sequence that has more or fewer
    real tokens than the grid has places is marked False, and holds whatever came first.
    """
    count = tokens.input_BND.shape[1] if tokens.mask_BN is None else int(tokens.count_B.max())
    height, width = checked_grid(grid, count)
    places = height * width
    values_BND = tokens.values_BND
    if tokens.mask_BN is not None:
        real_first_BN = (~tokens.mask_BN).to(torch.uint8).argsort(dim=1, stable=True)[:, :places]
        values_BND = values_BND.gather(1, real_first_BN.unsqueeze(-1).expand(-1, -1, tokens.dim))
    return values_BND.reshape(-1, height, width, tokens.dim), tokens.count_B == places


def checked_grid(grid: Grid | None, tokens: int) -> Grid:
    """The grid asked for, or the square one, if so many tokens fill it."""
    if grid is None:
        side = math.isqrt(tokens)
        if side * side != tokens or not tokens:
            raise expected("tokens on a square grid", f"{tokens} of them", "grid=(height, width)")
        return side, side
    if len(grid) != 2 or min(grid) < 1 or grid[0] * grid[1] != tokens:
        raise expected(f"`grid` as (height, width) of {tokens} tokens", grid, "class tokens masked, or another grid")
    return grid[0], grid[1]


def grid_of_image(tokens: int, image: tuple[int, int]) -> Grid | None:
    """Height and width in tokens of an image of this height and width, None where so many tokens do not fill one.

    >>> grid_of_image(196, (224, 224)), grid_of_image(8, (64, 128)), grid_of_image(197, (224, 224))
    ((14, 14), (2, 4), None)
    """
    height = round(math.sqrt(tokens * image[0] / image[1]))
    if height < 1 or tokens % height:
        return None
    width = tokens // height
    # Rounded up to whole patches, an image may be up to one patch larger than it is.
    return (height, width) if abs(width * image[0] / image[1] - height) < 1.0 else None
