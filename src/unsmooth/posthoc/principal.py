"""In which directions samples vary, and by how much: what whitening and all-but-the-top both learn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Principal(NamedTuple):
    """Principal directions of samples, those of the largest variance first.

    Args:
        mean_D: Their mean.
        variances_D: Over n − 1; those that are rounding alone are not more than that.
        directions_DD: In columns.
        varying: How many of the variances are more than rounding.
    """

    mean_D: Tensor
    variances_D: Tensor
    directions_DD: Tensor
    varying: int


def more_than_rounding(variances_D: Tensor, size: int) -> int:
    """How many of them, the largest first, are more than what is left of a variance that is zero."""
    return int((variances_D > variances_D[0] * size * torch.finfo(torch.float64).eps).sum())


def principal(x_ND: Tensor) -> Principal:
    """Of at least two samples in float64.

    Example:
        >>> found = principal(torch.tensor([[3.0, 1.0], [-1.0, 1.0]], dtype=torch.float64))
        >>> found.mean_D.tolist(), found.variances_D.tolist(), found.varying
        ([1.0, 1.0], [8.0, 0.0], 1)
    """
    samples, dimensions = x_ND.shape
    # From the first one, not from zero: the mean of equal numbers is off by a rounding error, which would be a spread.
    shifted_ND = x_ND - x_ND[0]
    shift_D = shifted_ND.mean(dim=0)
    centred_ND = shifted_ND - shift_D
    variances_D, directions_DD = torch.linalg.eigh(centred_ND.mT @ centred_ND / (samples - 1))
    variances_D, directions_DD = variances_D.flip(0).clamp(min=0.0), directions_DD.flip(1)
    varying = min(more_than_rounding(variances_D, max(samples, dimensions)), samples - 1)
    return Principal(x_ND[0] + shift_D, variances_D, directions_DD, varying)
