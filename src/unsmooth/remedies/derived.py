"""A weight that is computed: from others, and no parameter of its own, or from the parameter in its place."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

_SOURCE, _NAME = "_unsmooth_source", "_unsmooth_derived"


@functools.cache
def _with_derived_weight(kind: Any, name: str) -> Any:
    weight = property(lambda module: getattr(module, _SOURCE)())
    body = {name: weight, _NAME: name, "__reduce_ex__": _reduce, "__module__": kind.__module__}
    return type(f"Derived{kind.__name__}", (kind,), body)


def _reduce(module: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """A class made on the way has no name to be found by, so a copy is made from the class that it extends."""
    return _empty, (type(module).__mro__[1], getattr(module, _NAME)), vars(module)


def _empty(kind: Any, name: str = "weight") -> Any:
    derived = _with_derived_weight(kind, name)
    return derived.__new__(derived)


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
    kind: Any = type(module)
    module.__class__ = _with_derived_weight(kind, name)


def read_plainly(module: nn.Module) -> None:
    """Undo it."""
    module.__class__ = type(module).__mro__[1]
    object.__delattr__(module, _SOURCE)


def is_derived(module: nn.Module) -> bool:
    """Whether the module's weight is computed."""
    return hasattr(module, _SOURCE)
