"""A claim: a statement, what would confirm and refute it, how it is measured, how it is judged, how it is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias, TypeVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Judgement
from unsmooth.registry import Registry

P1 = "P1: Dovonon, Bronstein & Kusner, arXiv 2401.04301"
P2 = "P2: Yu & Zhang, arXiv 2312.06182"

Measured: TypeAlias = Mapping[str, Any]
"""What was measured, as plain data: it goes to a JSON file, and verdict and figure are worked out from that alone."""


class Claim(ABC):
    """One claim of a paper, in one file. Subclass, fill in, and put `@claim` above.

    Attributes:
        id: Short name: what `unsmooth evidence run` takes.
        number: Place in the ledger.
        source: Which paper, and where in it as far as that is known.
        statement: The claim in our own words, in one sentence.
        confirmed_if: What the numbers have to be for that; committed before the runs.
        refuted_if: Likewise.
        studies: Names of the training studies that it draws on.
        beyond: What the verdict does not reach, whichever it is; told beside it.
    """

    id: ClassVar[str]
    number: ClassVar[int]
    source: ClassVar[str]
    statement: ClassVar[str]
    confirmed_if: ClassVar[str]
    refuted_if: ClassVar[str]
    studies: ClassVar[tuple[str, ...]] = ()
    beyond: ClassVar[str] = ""

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """The seeds that `measure` uses."""
        return bench.seeds

    @abstractmethod
    def measure(self, bench: Bench) -> dict[str, Any]:
        """Measure, at the scale of the bench, and return plain data."""

    @abstractmethod
    def judge(self, measured: Measured) -> Judgement:
        """Apply the rule; looks at nothing but `measured`."""

    @abstractmethod
    def figure(self, measured: Measured) -> Figure:
        """Draw what was measured."""


CLAIMS = Registry[Claim]("claim")
C = TypeVar("C", bound=type[Claim])


def claim(kind: C) -> C:
    """Register a claim."""
    CLAIMS.add(kind.id, kind())
    return kind


def in_order() -> list[Claim]:
    """All claims as the ledger has them."""
    return sorted(CLAIMS.values(), key=lambda one: one.number)
