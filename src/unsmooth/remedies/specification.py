"""Remedies as text, for the command line: ``deescalate(tau=0.5, place='values') + residual_scaling``."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import nn

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.models.randomise import private_randomness
from unsmooth.remedies.base import option_defaults
from unsmooth.remedies.layers import Layers
from unsmooth.remedies.listing import find_remedy
from unsmooth.remedies.verbs import apply

M = TypeVar("M", bound=nn.Module)

_FORM = "remedies such as deescalate(tau=0.5) + residual_scaling"
# What `apply` takes beside a remedy's own options.
_OF_APPLY = ("layers", "allow_leak", "stack")


@dataclass(frozen=True)
class Wish:
    """One remedy as it was asked for.

    Args:
        name: Its name, known to exist.
        options: Its options that were given, known to exist; their values are checked when it is applied.
        layers: Which blocks, as in `unsmooth.apply`.
        allow_leak: As in `unsmooth.apply`.
        stack: As in `unsmooth.apply`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    layers: Layers = None
    allow_leak: bool = False
    stack: str | None = None

    def __str__(self) -> str:
        inside = dict(self.options)
        if self.layers is not None:
            inside["layers"] = write_layers(self.layers)
        if self.allow_leak:
            inside["allow_leak"] = True
        if self.stack is not None:
            inside["stack"] = self.stack
        given = ", ".join(f"{key}={value!r}" for key, value in inside.items())
        return f"{self.name}({given})" if given else self.name


def parse_remedies(text: str) -> tuple[Wish, ...]:
    """Read one remedy or several, each with options in brackets, joined by +.

    Words need no quotes. ``layers`` is written as on the command line.

    >>> [str(wish) for wish in parse_remedies("deescalate(tau=0.5, place=values, layers='4:8') + residual_scaling")]
    ["deescalate(tau=0.5, place='values', layers='4:8')", 'residual_scaling']
    >>> parse_remedies("deescalat")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known remedy but got 'deescalat'. Did you mean 'deescalate'? Known: ...
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise expected(_FORM, repr(text), "`unsmooth ls remedies`") from None
    return tuple(_wish(one, text) for one in _summands(node))


def parse_settings(wish: Wish, settings: list[str]) -> Wish:
    """A wish with ``key=value`` texts added to its options.

    >>> str(parse_settings(Wish("deescalate"), ["tau=0.5", "place=values"]))
    "deescalate(tau=0.5, place='values')"
    """
    given: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise expected("an option as key=value", repr(setting), "tau=0.5")
        given[key.strip()] = _value(value.strip())
    new = _checked(wish.name, given)
    return replace(
        wish,
        options={**wish.options, **new.options},
        layers=wish.layers if new.layers is None else new.layers,
        allow_leak=wish.allow_leak or new.allow_leak,
        stack=wish.stack if new.stack is None else new.stack,
    )


def parse_layers(text: str) -> Layers:
    """Layers as text: ``5``, ``0,1,5``, ``4:8``, ``0.5`` for the first half, ``-0.5`` for the last.

    >>> parse_layers("0,1,-1"), parse_layers("4:8"), parse_layers("8:"), parse_layers("-0.5"), parse_layers("5")
    ([0, 1, -1], slice(4, 8, None), slice(8, None, None), -0.5, 5)
    """
    parts = text.strip().split(":")
    try:
        if 1 < len(parts) <= 3:
            return slice(*(int(part) if part.strip() else None for part in parts))
        if "," in text:
            return [int(part) for part in text.split(",") if part.strip()]
        return float(text) if "." in text else int(text)
    except ValueError:
        raise expected(
            "layers as indices, a slice or a fraction of depth", repr(text), '"0,5", "4:8" or "0.5"'
        ) from None


def write_layers(layers: Layers) -> str:
    """Layers as `parse_layers` reads them.

    >>> [write_layers(layers) for layers in ([0, 2], slice(4, 8), slice(None, None, 2), -0.5, 5)]
    ['0,2', '4:8', '::2', '-0.5', '5']
    """
    if isinstance(layers, slice):
        ends = [layers.start, layers.stop, *([] if layers.step is None else [layers.step])]
        return ":".join("" if end is None else str(end) for end in ends)
    return str(layers) if isinstance(layers, int | float) else ",".join(map(str, layers or ()))


def apply_wishes(model: M, wishes: tuple[Wish, ...], *, blocks: str | None = None, seed: int = 0) -> M:
    """Apply remedies one after the other, in place; what they draw at random is drawn from `seed` alone."""
    with private_randomness(seed):
        for wish in wishes:
            apply(
                model,
                wish.name,
                layers=wish.layers,
                blocks=blocks,
                stack=wish.stack,
                allow_leak=wish.allow_leak,
                **wish.options,
            )
    return model


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _wish(node: ast.expr, text: str) -> Wish:
    if isinstance(node, ast.Name):
        return Wish(find_remedy(node.id).name)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args):
        raise expected(_FORM, repr(text), "`unsmooth ls remedies`")
    name = find_remedy(node.func.id).name
    return _checked(name, {str(keyword.arg): _literal(keyword.value, text) for keyword in node.keywords})


def _checked(name: str, given: Mapping[str, Any]) -> Wish:
    known = option_defaults(find_remedy(name))
    for option in given:
        if option not in known and option not in _OF_APPLY:
            raise unknown_name(f"option of {name}", option, (*known, *_OF_APPLY))
    layers, allow_leak = given.get("layers"), given.get("allow_leak", False)
    if not isinstance(allow_leak, bool):
        raise expected("allow_leak as True or False", repr(allow_leak), "allow_leak=True")
    return Wish(
        name=name,
        options={key: value for key, value in given.items() if key not in _OF_APPLY},
        layers=parse_layers(layers) if isinstance(layers, str) else layers,
        allow_leak=allow_leak,
        stack=given.get("stack"),
    )


def _literal(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):  # a word without quotes, which a shell would have taken anyway
        return node.id
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _not_literal(text) from None


def _value(text: str) -> Any:
    """A number, True, False, None, a list; anything else is the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _not_literal(text: str) -> UnsmoothError:
    return expected("numbers, words, True, False or None as options", repr(text), "`unsmooth ls remedies`")
