"""Dropout and stochastic depth whose random numbers belong to the sample, so that no batch or restart changes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth import keyed


class _Drop(nn.Module):
    """What is common to both: a rate, and a place in the network that gives it random numbers of its own."""

    _place: Tensor
    _threshold: Tensor
    _gain: Tensor

    def __init__(self, rate: float, place: int) -> None:
        super().__init__()
        self.rate, self.place, self.active = rate, place, rate > 0.0
        # As tensors, not numbers: torch.compile would compile every block anew for numbers of its own.
        self.register_buffer("_place", torch.tensor(place), persistent=False)
        self.register_buffer("_threshold", torch.tensor(_threshold_of(rate)), persistent=False)
        self.register_buffer("_gain", torch.tensor(1.0 / (1.0 - rate), dtype=torch.float64), persistent=False)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"{self.rate}"


class Dropout(_Drop):
    r"""Set elements to zero at random while training, and scale the others (Srivastava et al. 2014).

    .. math:: y_i = x_i\,m_i / (1 - p), \qquad m_i = [u_i \ge p]

    with u a function of the sample's key, of the place of this module in the network and of the element's index.

    Args:
        rate: p.
        place: A number that no other module of the network has.

    Example:
        >>> drop, keys = Dropout(0.5, place=0), torch.tensor([7, 8])
        >>> both, second = drop(torch.ones(2, 4), keys), drop(torch.ones(1, 4), keys[1:])
        >>> torch.equal(both[1:], second), torch.equal(both[:1], second)
        (True, False)
    """

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        """`x` (batch, ...) with one key per sample, `keys` (batch,)."""
        if not self.training or not self.active:
            return x
        assert keys is not None, "a network in training draws keys where it is given none"
        elements = torch.arange(x[0].numel(), device=x.device)
        kept = keyed.keys(keys[:, None], self._place, elements) >= self._threshold
        return x * (kept.view(x.shape) * self._gain.to(x.dtype))


class DropPath(_Drop):
    r"""Drop a branch of whole samples while training (stochastic depth; Huang et al. 2016, arXiv 1603.09382).

    .. math:: y = x\,m / (1 - p)

    Args:
        rate: p.
        place: A number that no other module of the network has.
    """

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        """`x` (batch, ...) with one key per sample, `keys` (batch,)."""
        if not self.training or not self.active:
            return x
        assert keys is not None, "a network in training draws keys where it is given none"
        kept = (keyed.keys(keys, self._place) >= self._threshold) * self._gain.to(x.dtype)
        return x * kept.view(-1, *(1,) * (x.ndim - 1))


def keys_for(network: nn.Module, dropout: float, drop_path: float, keys: Tensor | None, like: Tensor) -> Tensor | None:
    """The keys of a batch like `like`: those given, or new ones from torch's generator where something is dropped."""
    if keys is not None or not network.training or (dropout == 0.0 and drop_path == 0.0):
        return keys
    return torch.randint(0, 1 << 32, (like.shape[0],), device=like.device)


def _threshold_of(rate: float) -> int:
    """Keys below it are dropped; keys are even over 2³² numbers."""
    return round(rate * 2.0**32)
