"""A name to object table: what is registered shows up in the command, the report and the docs by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from unsmooth.errors import unknown_name

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping that is filled by registration and suggests a name when one is missed.

    >>> colours = Registry[int]("colour")
    >>> colours.add("red", 1)
    1
    >>> colours["rde"]
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known colour but got 'rde'. Did you mean 'red'? Known: red.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> T:
        """Register `item` under `name`, once."""
        if name in self._items:
            raise ValueError(f"Expected a new {self.kind} name but got {name!r}, which is taken. Try another name.")
        self._items[name] = item
        return item

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name]
        except KeyError:
            raise unknown_name(self.kind, name, self._items) from None

    # Mapping.__contains__ and .get go through __getitem__ and expect a KeyError, which users should not see.
    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
