"""The remedies there are: our own, and those that other packages bring by an entry point."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from unsmooth.errors import expected
from unsmooth.remedies.base import REMEDIES, CausalForm, Edit

ENTRY_POINTS = "unsmooth.remedies"


@dataclass(frozen=True)
class Option:
    """One option of a remedy."""

    name: str
    default: Any
    meaning: str


@dataclass(frozen=True)
class Description:
    """What is to be known about a remedy before it is used; see `unsmooth.remedies.base.Edit`."""

    name: str
    summary: str
    paper: str
    equation: str
    neutral: Mapping[str, Any] | None
    causal: CausalForm
    folds: str | None
    cost: str
    options: tuple[Option, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.summary}",
            f"  {self.equation}",
            f"  paper: {self.paper}",
            f"  does nothing at: {_words(self.neutral)}",
            f"  in a decoder: {self.causal}",
            f"  folds: {self.folds or 'no'}",
            f"  cost: {self.cost}",
            *(f"  {option.name}={option.default!r}: {option.meaning}" for option in self.options),
        ]
        return "\n".join(lines)


def names() -> list[str]:
    """The remedies there are, in alphabetical order.

    >>> "deescalate" in names()
    True
    """
    _load()
    return sorted(REMEDIES)


def describe(name: str) -> Description:
    """Paper, equation, neutral setting, causal form, cost and options of a remedy.

    >>> print(describe("residual_scaling").equation)
    x ← x + s·f(x), s = 1/√L
    """
    kind = find_remedy(name)
    return Description(
        name=kind.name,
        summary=kind.summary,
        paper=kind.paper,
        equation=kind.equation,
        neutral=kind.neutral,
        causal=kind.causal,
        folds=kind.folds,
        cost=kind.cost,
        options=tuple(Option(key, default, kind.options[key]) for key, default in option_defaults(kind).items()),
    )


def find_remedy(name: str) -> type[Edit]:
    """The class of a remedy."""
    _load()
    if not isinstance(name, str):
        raise expected("the name of a remedy", repr(name), f"one of {', '.join(names())}")
    return REMEDIES[name]


def option_defaults(kind: type[Edit]) -> dict[str, Any]:
    """The options of a remedy with their defaults: the keyword-only arguments of its `__init__`."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


@functools.cache
def _load() -> None:
    from unsmooth.remedies import catalogue  # noqa: F401 - registers our own

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            _add(entry.load())
        except Exception as error:  # somebody else's package must not take ours down
            warnings.warn(f"The remedy {entry.name!r} of {entry.value!r} failed to load: {error}", stacklevel=2)


def _add(kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Edit)):
        raise expected("a subclass of unsmooth.remedies.Edit", repr(kind), "the class itself")
    missing = [name for name in ("name", "summary", "paper", "equation", "causal", "cost") if not hasattr(kind, name)]
    missing += [f"options[{name!r}]" for name in option_defaults(kind) if name not in kind.options]
    if missing:
        raise expected(f"a remedy that says its {', '.join(missing)}", f"{kind.__name__} without", "adding them")
    if kind.name not in REMEDIES:
        REMEDIES.add(kind.name, kind)
    elif REMEDIES[kind.name] is not kind:  # or it has used the decorator too
        raise expected("a remedy with a name of its own", f"{kind.name!r}, which is taken", "another name")


def _words(neutral: Mapping[str, Any] | None) -> str:
    return "no setting" if neutral is None else ", ".join(f"{key}={value!r}" for key, value in neutral.items())
