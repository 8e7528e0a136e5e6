"""A class of its own for every changed block, so that torch.compile does not take it for a plain one.

What torch.compile has compiled it uses again for any model of the same classes and shapes; it does not look at hooks.
A remedied model that comes after its plain twin would then be run without its remedies, and nobody would be told.
"""

from __future__ import annotations

import uuid
from typing import Any

from torch import nn

from unsmooth.remedies.extending import extend, shrink

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
    extend(block, _marked, f"{earlier}+{text}" if earlier else text)


def unmark(block: nn.Module) -> None:
    """Give `block` its own class back."""
    if _MARK in vars(type(block)):
        shrink(block)


def _marked(text: str) -> dict[str, Any]:
    return {_MARK: text}
