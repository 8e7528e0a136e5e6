"""A name to object table: what is registered shows up in the command, the report and the docs by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.plugins import Plugin, find_plugins
from unsmooth.spec import read_sum

T = TypeVar("T")

_BY_FILE = {
    "metric": ("functional", "unsmooth.metrics"),
    "remedy": ("remedies/catalogue", "unsmooth.remedies"),
    "preset": ("presets/catalogue", "unsmooth.presets"),
}
"""Folders in which each file is called after the one thing in it, and who else may bring such things."""


def check_names(kind: str, texts: Iterable[str] | None) -> None:
    """Refuse names that are not there, by the names of files alone: the things themselves need torch.

    Args:
        kind: "metric", "remedy" or "preset".
        texts: Names with options, or several joined by +. What cannot be read is left to whoever reads it in full.

    >>> check_names("metric", ["mean_cosine(absolute=True)", "mean_cosin"])
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known metric but got 'mean_cosin'. Did you mean 'mean_cosine'? Known: ...
    """
    from importlib.metadata import entry_points

    folder, group = _BY_FILE[kind]
    known = {path.stem for path in (Path(__file__).parent / folder).glob("[a-z]*.py")}
    for text in texts or ():
        try:
            found = read_sum(text, "", "")
        except UnsmoothError:
            continue
        for spec in found:
            if known and spec.name not in known and not entry_points(group=group):
                raise unknown_name(kind, spec.name, known)


class Registry(Mapping[str, T], Generic[T]):
    """A mapping that is filled by registration and suggests a name when one is missed.

    Our own entries come first, then those of other packages. Both are looked for when the table is first read through,
    or a name is missed, so that nobody waits for packages that nobody asked for.

    Args:
        kind: What is in it, in the singular, for messages.
        home: Package of ours whose import registers our own entries, where it is not imported anyway.
        group: Entry point group by which other packages add entries; None takes none.
        accept: From what an entry point names to the name and the entry; raises where it is not one. Needed with
            `group`.

    >>> colours = Registry[int]("colour")
    >>> colours.add("red", 1)
    1
    >>> colours["rde"]
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known colour but got 'rde'. Did you mean 'red'? Known: red.
    """

    def __init__(
        self,
        kind: str,
        *,
        home: str | None = None,
        group: str | None = None,
        accept: Callable[[Any], tuple[str, T]] | None = None,
    ) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}
        self._home, self._group, self._accept = home, group, accept
        self._filled = False
        self._plugins: tuple[Plugin, ...] = ()

    def add(self, name: str, item: T) -> T:
        """Register `item` under `name`, once."""
        if name in self._items:
            raise ValueError(f"Expected a new {self.kind} name but got {name!r}, which is taken. Try another name.")
        self._items[name] = item
        return item

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """What other packages bring, whether it works or not."""
        self._fill()
        return self._plugins

    def _fill(self) -> None:
        if self._filled:
            return
        self._filled = True  # before: what is imported now may read this very table
        if self._home is not None:
            import_module(self._home)
        if self._group is not None:
            self._plugins = find_plugins(self._group, self._take)

    def _take(self, load: Callable[[], Any]) -> str:
        """Register what an entry point names, and nothing else that its package may have added while it was loaded."""
        assert self._accept is not None, "a registry with a group says what it accepts"
        before = dict(self._items)
        try:
            name, item = self._accept(load())
        finally:
            self._items = before
        if before.setdefault(name, item) is not item:
            raise expected(f"a name of its own for a new {self.kind}", f"{name!r}, which is taken", "another name")
        return name

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            self._fill()
        try:
            return self._items[name]
        except KeyError:
            raise unknown_name(self.kind, name, self._items) from None

    # Mapping.__contains__ and .get go through __getitem__ and expect a KeyError, which users should not see.
    def __contains__(self, name: object) -> bool:
        if name not in self._items:
            self._fill()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(self._items)

    def __len__(self) -> int:
        self._fill()
        return len(self._items)
