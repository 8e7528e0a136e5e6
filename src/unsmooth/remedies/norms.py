"""Norms that remedies take away or add: a norm is dropped by making it do nothing, and comes back as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.models.block_parts import norm_at, part
from unsmooth.models.value_projection import Norm
from unsmooth.remedies.base import Edit
from unsmooth.remedies.block import remedies_of
from unsmooth.remedies.site import Site


class DroppedNorm(nn.Identity):
    """A norm that hands on what it is given. It is still the module it was, so hooks on it still act."""


@dataclass(frozen=True)
class Dropped:
    """What a norm was: no parameters of the model, but put back by `put_back_norms`."""

    kind: Any
    parameters: Mapping[str, nn.Parameter | None]
    like: Mapping[str, Any]


def norms_of(site: Site) -> list[nn.Module]:
    """Every norm of a block that `drop_norms` makes do nothing."""
    return [part(site.block, path) for path in site.wiring.all_norms]


def drop_norms(site: Site) -> list[Dropped]:
    """Make every norm of a block do nothing. Returns what they were.

    >>> norm = nn.LayerNorm(2)
    >>> was = _drop(norm, {})
    >>> norm, list(norm.state_dict())
    (DroppedNorm(), [])
    >>> _put_back(norm, was, {})
    >>> norm, list(norm.state_dict())
    (LayerNorm((2,), eps=1e-05, elementwise_affine=True...), ['weight', 'bias'])
    """
    return [_drop(norm, site.like_weights()) for norm in norms_of(site)]


def put_back_norms(site: Site, dropped: list[Dropped]) -> None:
    """Make them the norms they were."""
    for norm, was in zip(norms_of(site), dropped, strict=False):
        _put_back(norm, was, site.like_weights())


def take_norms_out(state: dict[str, Any], block_prefix: str, site: Site, dropped: list[Dropped]) -> None:
    """Take the weights of dropped norms out of a plain checkpoint, and keep them for when the norms come back."""
    for path, was in zip(site.wiring.all_norms, dropped, strict=False):
        for name, parameter in was.parameters.items():
            found = state.pop(f"{block_prefix}{path}.{name}", None)
            if found is not None and parameter is not None:
                parameter.data.copy_(found)


class AddedNorm(nn.Module):
    """A new norm of the stream's width, of the kind and with the eps of the block's own.

    Args:
        site: The block, with norms that are not dropped.
        start: What its weights are before training; a bias, which it has where the block's own have one, is zero.
    """

    # No `reset_parameters`: what begins models anew would take it for weights of the model, and forget `start`.

    def __init__(self, site: Site, start: float = 1.0) -> None:
        super().__init__()
        own = norm_at(site.block, site.wiring.norms[0])
        self.kind, self.eps = own.kind, own.eps
        self.weight = nn.Parameter(torch.full((site.dim,), start, **site.like_weights()))
        self.bias = None if own.bias is None else nn.Parameter(torch.zeros(site.dim, **site.like_weights()))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., dim), in float32 or better where weights and numbers differ in dtype."""
        exact = x.dtype if x.dtype == self.weight.dtype else torch.promote_types(x.dtype, torch.float32)
        weight, bias = self.weight.to(exact), None if self.bias is None else self.bias.to(exact)
        if self.kind == "rms":
            return F.rms_norm(x.to(exact), weight.shape, weight, self.eps).to(x.dtype)
        return F.layer_norm(x.to(exact), weight.shape, weight, bias, self.eps).to(x.dtype)

    def read(self) -> Norm:
        """As those who explain a model know it."""
        bias = None if self.bias is None else self.bias.detach()
        return Norm(self.kind, self.weight.detach(), bias, self.eps)


def are_dropped(site: Site) -> bool:
    """Whether a remedy has dropped the norms of a block."""
    return any(isinstance(norm, DroppedNorm) for norm in norms_of(site))


def who_needs_norms(site: Site) -> str | None:
    """A remedy in the block that means nothing without its norms (its class says ``needs_norms = True``)."""
    home = remedies_of(site.block)
    edits: Mapping[str, Edit] = {} if home is None else home.edits()
    return next((name for name, edit in edits.items() if getattr(edit, "needs_norms", False)), None)


def _drop(norm: nn.Module, like: Mapping[str, Any]) -> Dropped:
    kind: Any = type(norm)
    was = Dropped(kind, dict(norm._parameters), dict(like))
    norm._parameters.clear()
    norm.__class__ = DroppedNorm
    return was


def _put_back(norm: nn.Module, was: Dropped, like: Mapping[str, Any]) -> None:
    norm.__class__ = was.kind
    for parameter in was.parameters.values():
        if parameter is not None and like != was.like:  # the model went elsewhere meanwhile, and the norm goes along
            parameter.data = parameter.data.to(**like)
    norm._parameters.update(was.parameters)
