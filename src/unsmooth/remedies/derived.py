"""A weight that is computed from others: read like any weight, but no parameter of its own."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

_SOURCE = "_unsmooth_source"


@functools.cache
def _with_derived_weight(kind: Any) -> Any:
    weight = property(lambda module: getattr(module, _SOURCE)())
    body = {"weight": weight, "__reduce_ex__": _reduce, "__module__": kind.__module__}
    return type(f"Derived{kind.__name__}", (kind,), body)


def _reduce(module: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """A class made on the way has no name to be found by, so a copy is made from the class that it extends."""
    return _empty, (type(module).__mro__[1],), vars(module)


def _empty(kind: Any) -> Any:
    derived = _with_derived_weight(kind)
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
    object.__setattr__(module, _SOURCE, source)
    kind: Any = type(module)
    module.__class__ = _with_derived_weight(kind)
    return weight


def put_weight(module: nn.Module, weight: nn.Parameter) -> None:
    """Make `weight` the module's own again, first among its parameters as before."""
    if is_derived(module):
        module.__class__ = type(module).__mro__[1]
        object.__delattr__(module, _SOURCE)
    module._parameters = OrderedDict([("weight", weight), *module._parameters.items()])


def is_derived(module: nn.Module) -> bool:
    """Whether the module's weight is computed."""
    return hasattr(module, _SOURCE)
