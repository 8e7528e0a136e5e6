"""Operations that replace each grey level by another one: a table of 256 entries per image and channel.

Invert, Posterize, Solarize and SolarizeAdd have tables that depend on their argument alone: all of them are made
beforehand. AutoContrast and Equalize depend on the image: its darkest and lightest levels, or its histogram. All is
integer arithmetic, or float64 in the very order in which Pillow computes, and so exact to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.training.augment.operations import IDENTITY, NAMES, one_hot

LEVELS = 256


class Lookup(nn.Module):
    """Tables for the operations on grey levels; for all other operations, the table that changes nothing."""

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
