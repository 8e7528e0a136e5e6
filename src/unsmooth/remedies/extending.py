"""A module of a class made on the way, which extends the one it was of, and which copies and pickles can make again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

Body = Callable[[str], dict[str, Any]]

_HOW = "_unsmooth_extended_by"


def extend(module: nn.Module, body: Body, text: str) -> None:
    """Give a module the class that extends its own by `body(text)`; modules extended alike have the same class.

    Args:
        module: The module.
        body: What the class has more than the one it extends, by name. A function of a file, to be found again by name.
        text: What `body` is told.

    Example:
        >>> one, two = nn.Linear(1, 1), nn.Linear(1, 1)
        >>> extend(one, _named, "first"), extend(two, _named, "first")
        (None, None)
        >>> one.note, type(one) is type(two), type(one).__name__, isinstance(one, nn.Linear)
        ('first', True, 'Linear', True)
        >>> shrink(one)
        >>> type(one) is nn.Linear
        True
    """
    kind: Any = type(module)
    module.__class__ = _extended(kind, body, text)


def shrink(module: nn.Module) -> None:
    """Give a module back the class that was extended."""
    module.__class__ = type(module).__mro__[1]


@functools.cache
def _extended(kind: Any, body: Body, text: str) -> Any:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__reduce_ex__": _reduce}
    return type(kind.__name__, (kind,), {**names, **body(text), _HOW: (body, text)})


def _reduce(module: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """The class has no name to be found by, so a copy is made from the class that it extends."""
    made = next(kind for kind in type(module).__mro__ if _HOW in vars(kind))
    return _empty, (made.__mro__[1], *vars(made)[_HOW]), vars(module)


def _empty(kind: Any, body: Body, text: str) -> Any:
    made = _extended(kind, body, text)
    return made.__new__(made)


def _named(text: str) -> dict[str, Any]:
    return {"note": text}
