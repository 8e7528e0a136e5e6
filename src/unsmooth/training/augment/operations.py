"""The fifteen operations of RandAugment: their names, and what a magnitude means to each of them.

The laws are those of the timm library, in which the published recipes for vision Transformers were trained: a level of
0 to 10 becomes degrees, bits, a threshold, a blending factor or a share of the image's side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from unsmooth.errors import expected

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


_DIGITS = 1e15  # Pillow rounds cosine and sine to 15 decimals, which makes the sine of 30° a half


class Affine(nn.Module):
    """Moving pixels; operations of other kinds get the matrix that moves nothing.

    Each has a matrix that says where a pixel of the result comes from, :math:`(x', y') = A (x, y, 1)^T` with pixel
    centres at halves. Between pixels, Pillow's two interpolations: bilinear, and the cubic convolution with a = −1 (not
    the −1/2 of its ``resize``), rows first, then columns, neighbours outside the image replaced by the nearest inside.
    A pixel whose source lies outside gets the fill colour. Results are cut to integers, not rounded.

    Because of that cut, arithmetic is in float64 and in Pillow's order: in flat areas, any other order may fall a hair
    short of the integer. Only cosine and sine may differ from Pillow's in the last bit, and sums where a compiler fuses
    them with products; both matter only where a result is an integer to 15 digits.

    Args:
        fill: Grey levels (red, green, blue) of what comes in from outside.

    Attributes:
        still: The matrix that moves nothing.
    """

    moves: Tensor
    still: Tensor
    fill: Tensor
    taps: Tensor

    def __init__(self, fill: Sequence[int]) -> None:
        super().__init__()
        moves = one_hot("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel").to(torch.float64)
        self.register_buffer("moves", moves, persistent=False)
        still = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
        self.register_buffer("still", still, persistent=False)
        self.register_buffer("fill", torch.tensor(fill, dtype=torch.int64).view(1, -1, 1), persistent=False)
        self.register_buffer("taps", torch.arange(-1.0, 3.0, dtype=torch.float64).view(1, 4, 1), persistent=False)

    def plan(self, operation_Bn: Tensor, argument_Bn: Tensor, height: int, width: int) -> Tensor:
        """Matrices (B, n, 2, 3), in float64."""
        turn, shear_x, shear_y, move_x, move_y = (self.moves[operation_Bn] * argument_Bn[..., None]).unbind(-1)
        angle = turn.remainder(360.0) * -(math.pi / 180.0)
        cosine, sine = (torch.round(wave * _DIGITS) / _DIGITS for wave in (angle.cos(), angle.sin()))
        # Where nothing turns, cosine is 1 and sine 0, and each sum below has one summand that is not 0.
        middle_x, middle_y = width / 2, height / 2
        from_x = (cosine * -middle_x + sine * -middle_y) + middle_x + move_x * width
        from_y = (-sine * -middle_x + cosine * -middle_y) + middle_y + move_y * height
        rows = [cosine, sine + shear_x, from_x, shear_y - sine, cosine, from_y]
        return torch.stack(rows, dim=-1).view(*operation_Bn.shape, 2, 3)

    def forward(self, images_BCHW: Tensor, matrix_B23: Tensor, cubic_B: Tensor) -> Tensor:
        """Grey levels of any dtype to int64 ones (B, C, P)."""
        height, width = images_BCHW.shape[2:]
        x_BP, y_BP = _sources(matrix_B23, height, width)
        inside_BP = (x_BP >= 0) & (x_BP < width) & (y_BP >= 0) & (y_BP < height)
        columns_B4P, right_BP = self._neighbours(x_BP, width)
        rows_B4P, down_BP = self._neighbours(y_BP, height)
        place = rows_B4P[:, None] * width + columns_B4P[:, :, None]
        levels = _levels_at(images_BCHW.to(torch.float64).flatten(2), place)
        cubic = cubic_B.view(-1, 1, 1)
        across = _between(levels.unbind(1), right_BP[:, None, None], cubic[..., None])
        value = _between(across.unbind(1), down_BP[:, None], cubic)
        return torch.where(inside_BP[:, None], value.clamp(0, 255).to(torch.int64), self.fill)

    def _neighbours(self, place_BP: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The four neighbours along an axis, and how far beyond the second of them we are."""
        shifted = place_BP - 0.5
        second = shifted.floor()
        return (second[:, None] + self.taps).clamp(0, size - 1).to(torch.int64), shifted - second


def _sources(matrix_B23: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from: x and y (B, P)."""
    along = {"dtype": torch.float64, "device": matrix_B23.device}
    x_P = (torch.arange(width, **along) + 0.5).expand(height, width).flatten()  # type: ignore[call-overload]
    y_P = (torch.arange(height, **along) + 0.5)[:, None].expand(height, width).flatten()  # type: ignore[call-overload]
    terms = matrix_B23[..., None]
    source = terms[:, :, 0] * x_P + terms[:, :, 1] * y_P + terms[:, :, 2]
    return source[:, 0], source[:, 1]


def _levels_at(images_BCP: Tensor, place_B44P: Tensor) -> Tensor:
    """Sixteen grey levels for each pixel of the result: (B, 4 columns, 4 rows, C, P)."""
    batch, channels, pixels = images_BCP.shape
    place = place_B44P.reshape(batch, 16, 1, pixels).expand(-1, -1, channels, -1)
    return images_BCP[:, None].expand(-1, 16, -1, -1).gather(3, place).view(batch, 4, 4, channels, pixels)


def _between(neighbours: Sequence[Tensor], way: Tensor, cubic: Tensor) -> Tensor:
    """Interpolate between the second and the third of four neighbours, `way` of the way, in the form Pillow uses.

    v₂ + d (p₂ + d (p₃ + d p₄)); the straight line is the case p₂ = v₃ − v₂, p₃ = p₄ = 0.
    """
    first, second, third, fourth = neighbours
    step = first - second
    slope = third - torch.where(cubic, first, second)
    bend = (2 * step + third - fourth) * cubic
    twist = (fourth - (step + third)) * cubic
    return second + way * (slope + way * (bend + way * twist))


LEVELS = 256


class Lookup(nn.Module):
    """Tables for the operations on grey levels; for all other operations, the table that changes nothing.

    Invert, Posterize, Solarize and SolarizeAdd have tables that depend on their argument alone: all of them are made
    beforehand. AutoContrast and Equalize depend on the image: its darkest and lightest levels, or its histogram. All is
    integer arithmetic, or float64 in the very order in which Pillow computes, and so exact to the bit.
    """

    rows: Tensor
    places: Tensor
    from_image: Tensor
    scaled: Tensor
    shift: Tensor
    one: Tensor

    def __init__(self) -> None:
        super().__init__()
        rows, places = _fixed_rows()
        scaled, shift = _stretches()
        buffers = {"rows": rows, "places": places, "from_image": one_hot("AutoContrast", "Equalize")}
        buffers |= {"scaled": scaled, "shift": shift, "one": torch.ones(1, 1, 1, dtype=torch.int64)}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def plan(self, operation_Bn: Tensor, argument_Bn: Tensor) -> tuple[Tensor, Tensor]:
        """What does not depend on the pixels: a fixed table (B, n, 256), and two flags (B, n, 2) that overrule it."""
        first, last = self.places[operation_Bn].unbind(-1)
        row = first + torch.minimum(argument_Bn.to(torch.int64), last).clamp(min=0)
        return self.rows[row], self.from_image[operation_Bn]

    def forward(self, pixels_BCP: Tensor, table_BV: Tensor, flags_B2: Tensor) -> Tensor:
        """int64 grey levels to float32 ones."""
        darkest, lightest = pixels_BCP.aminmax(dim=2, keepdim=True)
        stretch, equalise = flags_B2[:, :, None, None].unbind(1)
        table = torch.where(equalise, self._equalised(pixels_BCP, lightest), table_BV[:, None])
        table = torch.where(stretch, self._stretched(darkest, lightest), table)
        return table.clamp(0, LEVELS - 1).to(torch.float32).gather(2, pixels_BCP)

    def _stretched(self, darkest: Tensor, lightest: Tensor) -> Tensor:
        """AutoContrast: (x − darkest) · 255 / (lightest − darkest), cut to an integer."""
        span = lightest - darkest
        return (self.scaled[span[..., 0]] - self.shift[span, darkest]).to(torch.int64)

    def _equalised(self, pixels_BCP: Tensor, lightest: Tensor) -> Tensor:
        """Equalize: (pixels darker than x + step / 2) / step, all divisions without remainder.

        A step is the 255th part of the pixels that are not as light as the lightest one; without a whole step, the
        image is left alone.
        """
        counts = pixels_BCP.new_zeros(*pixels_BCP.shape[:2], LEVELS)
        counts = counts.scatter_add(2, pixels_BCP, self.one.expand_as(pixels_BCP))
        darker = counts.cumsum(2) - counts
        step = darker.gather(2, lightest) // (LEVELS - 1)
        divisor = step.clamp(min=1)
        return torch.where(step > 0, (darker + divisor // 2) // divisor, self.rows[_UNCHANGED])


_UNCHANGED = 8  # the row of Posterize that keeps all 8 bits


def _fixed_rows() -> tuple[Tensor, Tensor]:
    """Tables for each argument, and for each operation its first row and how far the argument may go."""
    level = torch.arange(LEVELS)
    bits = torch.arange(9)[:, None]
    posterized = level & (LEVELS - (1 << (8 - bits)))
    threshold = torch.arange(LEVELS + 1)[:, None]
    solarized = torch.where(level < threshold, level, 255 - level)
    added = torch.arange(LEVELS)[:, None]
    brightened = torch.where(level < 128, (level + added).clamp(max=255), level)
    firsts = {"Posterize": (0, 8), "Solarize": (9, LEVELS), "SolarizeAdd": (9 + LEVELS + 1, LEVELS - 1)}
    firsts["Invert"] = (9, 0)  # as Solarize with threshold 0
    places = [firsts.get(name, (_UNCHANGED, 0)) for name in NAMES] + [(_UNCHANGED, 0)] * (IDENTITY + 1 - len(NAMES))
    return torch.cat([posterized, solarized, brightened]), torch.tensor(places)


def _stretches() -> tuple[Tensor, Tensor]:
    """For each span: level · 255 / span, and what is taken from it, by darkest level.

    Made here once, so that no device can fuse product and difference and round otherwise than Pillow does.
    """
    level = torch.arange(LEVELS, dtype=torch.float64)
    # Not 255.0 / level, which torch takes for 255 times the rounded inverse.
    scale = torch.full_like(level, 255.0)[:, None] / level[:, None].clamp(min=1)
    scaled = level * scale
    shift = scaled.clone()
    scaled[0], shift[0] = level, 0.0  # a flat channel stays as it is
    return scaled, shift


# Weights of red, green and blue in Pillow's grey, in parts of 2^16.
_GREY = (19595, 38470, 7471)


class Blend(nn.Module):
    r"""Blending with a poorer version; operations of other kinds leave the image alone.

    .. math:: y = d + \alpha (x - d), \qquad \text{cut to an integer between 0 and 255}

    The poorer version *d* is grey for Color, the mean grey for Contrast, black for Brightness, smoothed for Sharpness.
    Products and sums are rounded to float32 as in Pillow, so results are the same to the bit as long as no compiler
    fuses the two: an Inductor kernel on a GPU does so unless its option ``emulate_precision_casts`` is set. What is
    below in float32 besides is exact: integers below 2²⁴.
    """

    kinds: Tensor
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kinds", one_hot("Color", "Contrast", "Sharpness", "Brightness"), persistent=False)
        self.register_buffer("weights", torch.tensor(_GREY).view(1, 3, 1, 1) / 2**16, persistent=False)

    def plan(self, operation_Bn: Tensor, argument_Bn: Tensor) -> tuple[Tensor, Tensor]:
        """What does not depend on the pixels: factors (B, n), 1 where nothing is blended, and kinds (B, n, 4)."""
        kinds = self.kinds[operation_Bn]
        return torch.where(kinds.any(-1), argument_Bn, 1.0).to(torch.float32), kinds

    def forward(self, images_BCHW: Tensor, factor_B: Tensor, kinds_B4: Tensor) -> Tensor:
        """float32 grey levels to float32 grey levels."""
        coloured, contrasted, sharpened, _ = kinds_B4[:, :, None, None, None].unbind(1)
        grey = grey_of(images_BCHW, self.weights)
        mean = (grey.mean((2, 3), keepdim=True, dtype=torch.float64) + 0.5).floor().to(torch.float32)
        poorer = torch.where(coloured, grey, mean * contrasted)
        poorer = torch.where(sharpened, smoothed(images_BCHW), poorer)
        blended = poorer + factor_B[:, None, None, None] * (images_BCHW - poorer)
        return blended.clamp(0, 255).floor()


def grey_of(images_BCHW: Tensor, weights: Tensor) -> Tensor:
    """One grey channel, rounded as Pillow's ``convert("L")``."""
    return ((images_BCHW * weights).sum(1, keepdim=True) + 0.5).floor()


def smoothed(images_BCHW: Tensor) -> Tensor:
    """Pillow's SMOOTH: a 3×3 mean in which the centre counts 5 of 13 parts, rounded; the outermost pixels stay.

    With S the integer sum, S / 13 + 1/2 is never nearer to an integer than 1/26, so float32 cannot cut it wrongly.

    >>> image = torch.zeros(1, 1, 3, 3)
    >>> image[..., 1, 1] = 13
    >>> smoothed(image)[0, 0, 1].tolist()
    [0.0, 5.0, 0.0]
    """
    if min(images_BCHW.shape[2:]) < 3:
        raise expected("images of 3×3 pixels or more", f"{tuple(images_BCHW.shape)}", "larger ones, or rand=''")
    inner = (..., slice(1, -1), slice(1, -1))
    total = F.avg_pool2d(images_BCHW, 3, stride=1, divisor_override=1) + 4 * images_BCHW[inner]
    out = images_BCHW.clone()
    out[inner] = (total / 13 + 0.5).floor()
    return out
