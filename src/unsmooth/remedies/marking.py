"""A class of its own for every changed block, so that torch.compile does not take it for a plain one.

What torch.compile has compiled it uses again for any model of the same classes and shapes; it does not look at hooks.
A remedied model that comes after its plain twin would then be run without its remedies, and nobody would be told.
"""

from __future__ import annotations

import functools
import uuid
from typing import Any

from torch import nn

_MARK = "_unsmooth_mark"


def new_mark() -> str:
    """A mark that no other block has, in this process or another."""
    return uuid.uuid4().hex


def mark(block: nn.Module, text: str) -> None:
    """Give `block` the class that extends its own by a mark; blocks with the same marks share what is compiled.

    A second mark adds to the first.

    >>> one, two, three = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    >>> mark(one, "a"), mark(two, "a"), mark(three, "b")
    (None, None, None)
    >>> type(one) is type(two), type(one) is type(three), type(one).__name__, isinstance(one, nn.Linear)
    (True, False, 'Linear', True)
    >>> unmark(one)
    >>> type(one) is nn.Linear
    True
    """
    earlier = getattr(type(block), _MARK, "")
    unmark(block)
    kind: Any = type(block)
    block.__class__ = _marked(kind, f"{earlier}+{text}" if earlier else text)


def unmark(block: nn.Module) -> None:
    """Give `block` its own class back."""
    if _MARK in vars(type(block)):
        block.__class__ = type(block).__mro__[1]


@functools.cache
def _marked(kind: Any, text: str) -> Any:
    body = {_MARK: text, "__reduce_ex__": _reduce, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), body)


def _reduce(block: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """A class made on the way has no name to be found by, so a copy is made from the class that it extends."""
    marked = next(kind for kind in type(block).__mro__ if _MARK in vars(kind))
    return _empty, (marked.__mro__[1], getattr(marked, _MARK)), vars(block)


def _empty(kind: Any, text: str) -> Any:
    marked = _marked(kind, text)
    return marked.__new__(marked)
