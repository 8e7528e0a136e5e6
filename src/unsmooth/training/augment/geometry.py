r"""Operations that move pixels: Rotate, ShearX, ShearY, TranslateXRel and TranslateYRel.

Each has a matrix that says where a pixel of the result comes from, :math:`(x', y') = A (x, y, 1)^T` with pixel centres
at halves. Between pixels, Pillow's two interpolations: bilinear, and the cubic convolution with a = −1 (not the −1/2 of
its ``resize``), rows first, then columns, neighbours outside the image replaced by the nearest inside. A pixel whose
source lies outside gets the fill colour. Results are cut to integers, not rounded.

Because of that cut, arithmetic is in float64 and in Pillow's order: in flat areas, any other order may fall a hair
short of the integer. Only cosine and sine may differ from Pillow's in the last bit, and sums where a compiler fuses
them with products; both matter only where a result is an integer to 15 digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unsmooth.training.augment.operations import one_hot

_DIGITS = 1e15  # Pillow rounds cosine and sine to 15 decimals, which makes the sine of 30° a half


class Affine(nn.Module):
    """Moving pixels; operations of other kinds get the matrix that moves nothing.

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
