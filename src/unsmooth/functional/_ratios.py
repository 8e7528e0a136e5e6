"""The split X = ΠX + (I − Π)X as one number in several guises, with values and gradients defined at zero.

Every guard asks `== 0` and not `> 0`, so that a NaN falls through to the result and is seen.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ratio(numerator: Tensor, denominator: Tensor, otherwise: float) -> Tensor:
    """Quotient that is `otherwise`, with zero gradient, where the denominator is zero and the numerator a number.

    >>> ratio(torch.tensor([1.0, 1.0, torch.nan]), torch.tensor([4.0, 0.0, 0.0]), otherwise=7.0)
    tensor([0.2500, 7.0000,    nan])
    """
    empty = (denominator == 0) & ~numerator.isnan()
    return torch.where(empty, otherwise, numerator / torch.where(empty, 1.0, denominator))


def root(value: Tensor) -> Tensor:
    """Square root whose gradient at zero is zero and not infinite.

    >>> root(torch.tensor([4.0, 0.0]))
    tensor([2., 0.])
    """
    if not value.requires_grad:
        return value.sqrt()
    zero = value == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, value).sqrt())


def similarity_of(shared: Tensor, spread: Tensor, squared: bool) -> Tensor:
    """Share of the energy that all tokens have in common; 1 where there is no energy.

    Dividing by the sum of both parts and not by ‖X‖² keeps the result from rounding to above 1.

    Args:
        shared: ‖ΠX‖_F².
        spread: ‖(I − Π)X‖_F².
        squared: Ratio of squared norms, else of norms.
    """
    similarity = ratio(shared, shared + spread, otherwise=1.0)
    return similarity if squared else root(similarity)


def diversity_of(shared: Tensor, spread: Tensor, squared: bool) -> Tensor:
    """One minus `similarity_of` without the cancellation; 0 where there is no energy."""
    diversity = ratio(spread, shared + spread, otherwise=0.0)
    if squared:
        return diversity
    # 1 − √t = (1 − t)/(1 + √t)
    return diversity / (1.0 + similarity_of(shared, spread, squared=False))
