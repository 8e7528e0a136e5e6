r"""Operations that blend an image with a poorer version of itself: Color, Contrast, Brightness and Sharpness.

.. math:: y = d + \alpha (x - d), \qquad \text{cut to an integer between 0 and 255}

The poorer version *d* is grey for Color, the mean grey for Contrast, black for Brightness, smoothed for Sharpness.
Products and sums are rounded to float32 as in Pillow, so results are the same to the bit as long as no compiler fuses
the two: an Inductor kernel on a GPU does so unless its option ``emulate_precision_casts`` is set. What is below in
float32 besides is exact: integers below 2²⁴.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from unsmooth.errors import expected
from unsmooth.training.augment.operations import one_hot

# Weights of red, green and blue in Pillow's grey, in parts of 2^16.
_GREY = (19595, 38470, 7471)


class Blend(nn.Module):
    """Blending with a poorer version; operations of other kinds leave the image alone."""

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
