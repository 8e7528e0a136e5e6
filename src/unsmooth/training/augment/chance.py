"""Whether a thing happens, told from a key."""

from __future__ import annotations

from torch import Tensor

from unsmooth.errors import expected


def happens(keys: Tensor, probability: float) -> Tensor:
    """True for a share `probability` of all keys: exactly none at 0, exactly all at 1.

    >>> import torch
    >>> happens(torch.tensor([0, 2**32 - 1]), 1.0).tolist(), happens(torch.tensor([0]), 0.0).tolist()
    ([True, True], [False])
    """
    return keys < round(probability * 2**32)


def share(value: float, name: str) -> float:
    """`value` if it is a probability.

    >>> share(0.5, "p")
    0.5
    """
    if not 0.0 <= value <= 1.0:
        raise expected(f"{name} from 0 to 1", value, f"{name}=0.5")
    return value
