"""Dataclasses from plain data: every value is of the kind that its field's type says, or is named in one line."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from unsmooth.errors import expected, unknown_name

T = TypeVar("T")
_NOWHERE = "plain data"
_Reader = Callable[[Any], Any]
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


class _UnfitError(Exception):
    """A value of another kind, and the way to it, from the inside out."""

    def __init__(self, wanted: str, got: Any, known: Iterable[str] = ()) -> None:
        super().__init__(wanted)
        self.wanted, self.got, self.known = wanted, got, known
        self.way: list[str] = []


def parse(kind: type[T], plain: Any, *, where: str = _NOWHERE, what: str = "entry") -> T:
    """Plain data, as JSON holds it, as `kind`.

    Lists become tuples where the type says so, null becomes NaN where a number must stand, and pairs become complex
    numbers. Entries that a dataclass does not know are refused; missing ones take their defaults. A dataclass with a
    class variable ``kind`` is chosen among several by that entry.

    Args:
        kind: A dataclass, or any type that its fields may have.
        plain: What was read.
        where: What it was read from, for the error.
        what: What the entries of a dataclass are called.

    Raises:
        UnsmoothError: In one line, which value is of another kind.

    >>> @dataclasses.dataclass
    ... class Box:
    ...     sides: tuple[float, ...]
    ...     name: str = ""
    >>> parse(Box, {"sides": [1, None]})
    Box(sides=(1.0, nan), name='')
    >>> parse(Box, {"sides": [1, "b"]}, where="a file")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a number at sides[1] in a file but got 'b'. Try another copy of it.
    """
    try:
        hint: Any = kind
        found: T = _reader(hint, what)(plain)
    except _UnfitError as unfit:
        way = "".join(reversed(unfit.way)).lstrip(".")
        at = f" at {way} in {where}" if way else f" in {where}"
        if unfit.known:
            raise unknown_name(unfit.wanted + (at if where != _NOWHERE else ""), unfit.got, unfit.known) from None
        got = unfit.got if isinstance(unfit.got, str | int | float | bool | None) else type(unfit.got).__name__
        raise expected(f"{unfit.wanted}{at}", repr(got)[:80], "another copy of it") from None
    return found


@cache
def _reader(hint: Any, what: str) -> _Reader:
    """How a value of a type is read; made once for each type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin in (typing.Union, types.UnionType):
        return _one_of(inner, what)
    if origin is typing.Literal:
        return _word(inner)
    if dataclasses.is_dataclass(hint):
        return _fields(hint, what)
    if hint is float:
        return _number
    if hint is complex:
        return _pair
    if hint is tuple or origin is tuple:
        return _tuple(inner, what)
    if hint is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _mapping(_reader(inner[1], what) if len(inner) > 1 else _reader(Any, what))
    return _plain(origin or hint)


def _at(step: str, reader: _Reader, value: Any) -> Any:
    """What lies one step further inside."""
    try:
        return reader(value)
    except _UnfitError as unfit:
        unfit.way.append(step)
        raise


def _plain(kind: Any) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _UnfitError(_WORDS.get(kind, getattr(kind, "__name__", str(kind))), value)
        return value

    return read


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _UnfitError(_WORDS[float], value)
    return float(value)


def _pair(value: Any) -> complex:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise _UnfitError("a pair of numbers", value)
    return complex(*map(_number, value))


def _word(known: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, str | int) or value not in known:
            raise _UnfitError("one of " + ", ".join(map(repr, known)), value)
        return value

    return read


def _tuple(inner: tuple[Any, ...], what: str) -> _Reader:
    readers = [_reader(one, what) for one in inner if one is not ...]
    any_length = not inner or inner[-1] is ...

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or not (any_length or len(value) == len(readers)):
            raise _UnfitError("a list" if any_length else f"a list of {len(readers)}", value)
        if not readers:
            return tuple(value)
        return tuple(_at(f"[{i}]", readers[0 if any_length else i], one) for i, one in enumerate(value))

    return read


def _mapping(inner: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _UnfitError(_WORDS[dict], value)
        return {name: _at(f".{str(name)[:40]!r}", inner, one) for name, one in value.items()}

    return read


def _one_of(options: tuple[Any, ...], what: str) -> _Reader:
    # A whole number stays one where both kinds of numbers may stand.
    ordered = sorted((one for one in options if one is not type(None)), key=lambda one: one is float)
    optional = len(ordered) < len(options)
    classes: list[Any] = [one for one in ordered if dataclasses.is_dataclass(one)]
    kinds = {getattr(one, "kind", None): _reader(one, what) for one in classes}
    readers = [_reader(one, what) for one in ordered]

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        if len(kinds) > 1 and isinstance(value, Mapping):
            name = value.get("kind")
            if not isinstance(name, str) or name not in kinds:
                raise _UnfitError(f"a kind of {', '.join(map(str, kinds))}", name)
            return kinds[name](value)
        for place, reader in enumerate(readers, 1):
            try:
                return reader(value)
            except _UnfitError:
                if place == len(readers):
                    raise
        raise AssertionError("a union has members")

    return read


def _fields(kind: Any, what: str) -> _Reader:
    hints: dict[str, Any] = {}
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    required = {name for name, one in fields.items() if one.default is one.default_factory is dataclasses.MISSING}

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _UnfitError(_WORDS[dict], value)
        if not hints:  # not before it is used: a dataclass may hold itself
            every = typing.get_type_hints(kind)
            hints.update({name: _reader(every[name], what) for name in fields})
        given = {}
        for name, one in value.items():
            if name not in fields:
                if name == "kind" and isinstance(getattr(kind, "kind", None), str):
                    continue
                raise _UnfitError(what, str(name)[:80], fields)
            given[name] = _at(f".{name}", hints[name], one)
        if missing := sorted(required - given.keys()):
            raise _UnfitError(f"{what} {missing[0]!r}", None)
        return kind(**given)

    return read
