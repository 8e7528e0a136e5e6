"""The remedies there are: our own, and those that other packages bring by an entry point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unsmooth.errors import expected
from unsmooth.remedies.base import REMEDIES, CausalForm, Edit, option_defaults


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
    if not isinstance(name, str):
        raise expected("the name of a remedy", repr(name), f"one of {', '.join(names())}")
    return REMEDIES[name]


def _words(neutral: Mapping[str, Any] | None) -> str:
    return "no setting" if neutral is None else ", ".join(f"{key}={value!r}" for key, value in neutral.items())
