"""Remedies as text, for the command line: ``deescalate(tau=0.5, place='values') + residual_scaling``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from unsmooth.errors import expected
from unsmooth.models.randomise import private_randomness
from unsmooth.remedies.layers import Layers
from unsmooth.remedies.listing import find_remedy
from unsmooth.remedies.verbs import apply
from unsmooth.spec import Spec, checked, options_of, read_settings, read_sum, read_value

M = TypeVar("M", bound=nn.Module)

# What `apply` takes beside a remedy's own options.
_OF_APPLY = {name: option for name, option in options_of(apply).items() if name in ("layers", "allow_leak", "stack")}


@dataclass(frozen=True)
class Wish:
    """One remedy as it was asked for.

    Args:
        name: Its name, known to exist.
        options: Its options that were given, of the kind and in the range that it declares.
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
        of_apply: dict[str, Any] = {} if self.layers is None else {"layers": write_layers(self.layers)}
        of_apply |= {"allow_leak": True} if self.allow_leak else {}
        of_apply |= {} if self.stack is None else {"stack": self.stack}
        return str(Spec(self.name, {**self.options, **of_apply}))


def parse_remedies(text: str) -> tuple[Wish, ...]:
    """Read one remedy or several, each with options in brackets, joined by +.

    Words need no quotes. ``layers`` is written as on the command line.

    >>> [str(wish) for wish in parse_remedies("deescalate(tau=0.5, place=values, layers=4:8) + residual_scaling")]
    ["deescalate(layers='4:8', place='values', tau=0.5)", 'residual_scaling']
    >>> parse_remedies("deescalat")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known remedy but got 'deescalat'. Did you mean 'deescalate'? Known: ...
    """
    found = read_sum(text, "remedies such as deescalate(tau=0.5) + residual_scaling", "`unsmooth ls remedies`")
    return tuple(_checked(spec.name, spec.options) for spec in found)


def parse_settings(wish: Wish, settings: Sequence[str]) -> Wish:
    """A wish with ``key=value`` texts in the place of its options, or added to them.

    >>> str(parse_settings(Wish("deescalate"), ["tau=0.5", "place=values"]))
    "deescalate(place='values', tau=0.5)"
    """
    given = read_settings(settings, "an option as key=value", "tau=0.5")
    before = {**wish.options, **{name: getattr(wish, name) for name in _OF_APPLY}}
    return _checked(wish.name, {**before, **{key: read_value(value) for key, value in given.items()}})


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


def _checked(name: str, given: Mapping[str, Any]) -> Wish:
    kind = find_remedy(name)
    if isinstance(given.get("layers"), str):
        given = {**given, "layers": parse_layers(given["layers"])}
    options = checked(name, {**options_of(kind.__init__), **_OF_APPLY}, given)
    of_apply = {key: options.pop(key) for key in _OF_APPLY if key in options}
    return Wish(name, options, **of_apply)
