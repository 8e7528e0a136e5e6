"""The fifteen operations of RandAugment: their names, and what a magnitude means to each of them.

The laws are those of the timm library, in which the published recipes for vision Transformers were trained: a level of
0 to 10 becomes degrees, bits, a threshold, a blending factor or a share of the image's side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

NAMES = (
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateXRel",
    "TranslateYRel",
)
IDENTITY = len(NAMES)  # the number of the operation that leaves an image alone
TOP = 10.0  # the level at which `Law.scale` is reached


def number(name: str) -> int:
    """The place of an operation in `NAMES`.

    >>> number("Invert")
    2
    """
    return NAMES.index(name)


def one_hot(*names: str) -> Tensor:
    """For each operation, `IDENTITY` included, which of `names` it is.

    >>> one_hot("Color", "Invert")[2].tolist()
    [False, True]
    """
    wanted = torch.tensor([number(name) for name in names])
    return torch.arange(IDENTITY + 1)[:, None] == wanted


@dataclass(frozen=True)
class Law:
    """From level to argument: offset ± level / 10 · scale, the product an integer if `whole`, all at least `least`."""

    scale: float = 0.0
    offset: float = 0.0
    signed: bool = False
    whole: bool = False
    falling: bool = False
    least: float = -math.inf

    def row(self) -> list[float]:
        """Columns of the table in `Arguments`; the third and fourth are the signs of heads and tails."""
        sign = -1.0 if self.falling else 1.0
        return [self.scale, self.offset, sign, -sign if self.signed else sign, float(self.whole), self.least]


_ENHANCE = Law(scale=1.8, offset=0.1)
_ENHANCE_INCREASING = Law(scale=0.9, offset=1.0, signed=True, least=0.1)
_ENHANCING = ("Color", "Contrast", "Brightness", "Sharpness")
LAWS = {
    "Rotate": Law(scale=30.0, signed=True),
    "Posterize": Law(scale=4.0, whole=True),
    "Solarize": Law(scale=256.0, whole=True),
    "SolarizeAdd": Law(scale=110.0, whole=True),
    **dict.fromkeys(_ENHANCING, _ENHANCE),
    "ShearX": Law(scale=0.3, signed=True),
    "ShearY": Law(scale=0.3, signed=True),
    "TranslateXRel": Law(scale=0.45, signed=True),
    "TranslateYRel": Law(scale=0.45, signed=True),
}
INCREASING = {
    **LAWS,
    "Posterize": Law(scale=4.0, offset=4.0, whole=True, falling=True),
    "Solarize": Law(scale=256.0, offset=256.0, whole=True, falling=True),
    **dict.fromkeys(_ENHANCING, _ENHANCE_INCREASING),
}


class Arguments(nn.Module):
    """What each operation is called with at a given level.

    Args:
        increasing: Whether strength grows with the level in all operations (timm's "inc1").

    Example:
        >>> rotate, posterize = torch.tensor([number("Rotate")]), torch.tensor([number("Posterize")])
        >>> level, heads = torch.tensor([9.0], dtype=torch.float64), torch.tensor([False])
        >>> Arguments()(rotate, level, heads).item(), Arguments(increasing=True)(posterize, level, heads).item()
        (27.0, 1.0)
    """

    laws: Tensor

    def __init__(self, increasing: bool = False) -> None:
        super().__init__()
        laws = INCREASING if increasing else LAWS
        rows = [laws.get(name, Law()).row() for name in (*NAMES, "Identity")]
        self.register_buffer("laws", torch.tensor(rows, dtype=torch.float64), persistent=False)

    def forward(self, operation: Tensor, level: Tensor, tails: Tensor) -> Tensor:
        """float64, in the shape of the inputs; `tails` decides the sign where there is one."""
        scale, offset, heads_sign, tails_sign, whole, least = self.laws[operation].unbind(-1)
        value = level / TOP * scale
        value = torch.where(whole > 0, value.trunc(), value)
        return torch.maximum(offset + torch.where(tails, tails_sign, heads_sign) * value, least)
