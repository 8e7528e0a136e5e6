"""Settings as plain data and back: JSON in a run's folder, ``--set key=value`` on the command line."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.schema import parse
from unsmooth.spec import split_at_commas

T = TypeVar("T")
_WORDS: Mapping[str, Any] = {"true": True, "yes": True, "false": False, "no": False, "none": None, "null": None}


def to_plain(settings: Any) -> Any:
    """Dataclasses as dicts, tuples as lists: what JSON can hold.

    >>> @dataclasses.dataclass
    ... class Box:
    ...     sides: tuple[int, ...] = (1, 2)
    >>> to_plain(Box())
    {'sides': [1, 2]}
    """
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        plain = {field.name: to_plain(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
        kind = getattr(type(settings), "kind", None)
        return {"kind": kind, **plain} if isinstance(kind, str) else plain
    if isinstance(settings, list | tuple):
        return [to_plain(item) for item in settings]
    return settings


def from_plain(kind: type[T], plain: Mapping[str, Any]) -> T:
    """The dataclass `kind` that `to_plain` wrote; unknown names are refused, missing ones take their default."""
    return parse(kind, plain, where="the settings", what="setting")


def override(settings: T, changes: Mapping[str, Any]) -> T:
    """A copy of `settings` with some of them changed.

    Args:
        settings: A dataclass, maybe of dataclasses.
        changes: Name to value. A name is a path such as "optimiser.lr", or its last part where only one path ends so.
            Text is read as the type of the setting; other values are taken as they are.

    >>> from unsmooth.training.config import Schedule
    >>> override(Schedule(), {"warmup": "5", "name": "linear"})
    Schedule(name='linear', warmup=5.0, initial=0.0, final=0.0)
    """
    by_path: dict[tuple[str, ...], Any] = {}
    for name, value in changes.items():
        path = tuple(_path(settings, name).split("."))
        if path in by_path:
            raise expected(f"{'.'.join(path)} once", "two values of it", "one of them")
        by_path[path] = value
    changed: T = _changed(settings, by_path)
    return changed


def paths(settings: Any, prefix: str = "") -> Iterator[str]:
    """Every setting by its path.

    >>> from unsmooth.training.config import Schedule
    >>> list(paths(Schedule()))
    ['name', 'warmup', 'initial', 'final']
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from paths(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _path(settings: Any, name: str) -> str:
    known = list(paths(settings))
    if name in known:
        return name
    ending = [path for path in known if path.endswith(f".{name}")]
    if len(ending) > 1:
        raise expected(f"one setting called {name!r}", f"{len(ending)}: {', '.join(ending)}", "the whole path")
    if not ending:
        raise unknown_name("setting", name, known if "." in name else _shortest(known))
    return ending[0]


def _shortest(known: list[str]) -> list[str]:
    """Every setting by the shortest name that is taken for it.

    >>> _shortest(["seed", "data.name", "schedule.name", "network.depth", "other.seed"])
    ['seed', 'data.name', 'schedule.name', 'depth', 'other.seed']
    """
    last = Counter(path.rpartition(".")[2] for path in known)
    return [short if last[short := path.rpartition(".")[2]] == 1 else path for path in known]


def _changed(settings: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
    """All changes at once: some settings are only allowed together."""
    hints = typing.get_type_hints(type(settings))
    new: dict[str, Any] = {}
    for name in dict.fromkeys(path[0] for path in changes):
        inner = {path[1:]: value for path, value in changes.items() if path[0] == name}
        if () in inner:
            value = inner[()]
            new[name] = _from_text(hints[name], value, name) if isinstance(value, str) else value
        else:
            new[name] = _changed(getattr(settings, name), inner)
    return dataclasses.replace(settings, **new)


def _from_text(hint: Any, text: str, name: str) -> Any:
    options = _options(hint)
    word = text.strip()
    if type(None) in options and word.lower() in ("none", "null", ""):
        return None
    if any(typing.get_origin(option) is tuple for option in options):
        inner = typing.get_args(next(option for option in options if typing.get_origin(option) is tuple))[0]
        return tuple(_from_text(inner, part, name) for part in split_at_commas(_unwrapped(word)))
    for option in (bool, int, float):
        if option in options and (value := _number(option, word)) is not None:
            return value
    if str in options or any(typing.get_origin(option) is typing.Literal for option in options):
        return _choice(options, word, name)
    kinds = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise expected(f"{name} as {kinds}", repr(text), f"--set {name}=VALUE")


def _unwrapped(word: str) -> str:
    """Without brackets around all of it."""
    return word[1:-1] if word[:1] + word[-1:] in ("()", "[]") else word


def _number(kind: type, word: str) -> Any:
    if kind is bool:
        return _WORDS.get(word.lower()) if word.lower() in ("true", "yes", "false", "no") else None
    try:
        value = float(word)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    if kind is int:
        digits = word.lstrip("+-").replace("_", "").isdigit()  # as written: a float has 53 bits
        return int(word) if digits else int(value) if value.is_integer() else None
    return value


def _choice(options: tuple[Any, ...], word: str, name: str) -> str:
    allowed = [value for option in options if typing.get_origin(option) is typing.Literal for value in option.__args__]
    if allowed and word not in allowed:
        raise UnsmoothError(str(unknown_name(name, word, map(str, allowed))))
    return word


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(option for part in typing.get_args(hint) for option in _options(part))
    return (hint,)
