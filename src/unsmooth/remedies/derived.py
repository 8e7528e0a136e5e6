"""A weight that is computed: from others, and no parameter of its own, or from the parameter in its place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from unsmooth.remedies.extending import extend, shrink

_SOURCE = "_unsmooth_source"


def _computed(name: str) -> dict[str, Any]:
    return {name: property(lambda module: getattr(module, _SOURCE)())}


def derive_weight(module: nn.Module, source: Callable[[], Tensor]) -> nn.Parameter:
    """Have `module.weight` computed by `source` each time it is read. Returns the parameter it replaces.

    `source` should be a method of a module, so that it follows when the model is copied.

    >>> import torch
    >>> linear, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    >>> before = derive_weight(linear, other.weight.neg)
    >>> torch.equal(linear(torch.eye(2)), -other.weight.T), list(linear.parameters())
    (True, [])
    >>> put_weight(linear, before)
    >>> linear.weight is before
    True
    """
    weight = module._parameters.pop("weight")
    assert weight is not None, "a projection has a weight"
    read_through(module, "weight", source)
    return weight


def put_weight(module: nn.Module, weight: nn.Parameter) -> None:
    """Make `weight` the module's own again, first among its parameters as before."""
    if is_derived(module):
        read_plainly(module)
    module._parameters = OrderedDict([("weight", weight), *module._parameters.items()])


def read_through(module: nn.Module, name: str, source: Callable[[], Tensor]) -> None:
    """Have whoever reads the parameter `name` get what `source` makes of it. It stays a parameter, in its place.

    >>> linear = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(linear.weight, 2.0)
    >>> read_through(linear, "weight", linear.weight.neg)
    >>> linear.weight.item(), next(linear.parameters()).item()
    (-2.0, 2.0)
    >>> read_plainly(linear)
    >>> linear.weight.item()
    2.0
    """
    object.__setattr__(module, _SOURCE, source)
    extend(module, _computed, name)


def read_plainly(module: nn.Module) -> None:
    """Undo it."""
    shrink(module)
    object.__delattr__(module, _SOURCE)


def is_derived(module: nn.Module) -> bool:
    """Whether the module's weight is computed."""
    return hasattr(module, _SOURCE)
