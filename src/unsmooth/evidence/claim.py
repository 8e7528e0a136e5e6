"""A claim: the papers' sentence, how it is read, what speaks for and against it, how that is measured and drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from unsmooth.errors import expected
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Judgement, Wording
from unsmooth.evidence.papers import PAPERS, abstract
from unsmooth.evidence.records import SCALES, Record, Store
from unsmooth.registry import Registry

Section = Literal["identities checked numerically", "trained models", "training", "our own"]

Measured: TypeAlias = Mapping[str, Any]
"""What was measured, as plain data: it goes to a JSON file, and outcome and figure are worked out from that alone."""


@dataclass(frozen=True)
class Source:
    """Where a claim's sentence is from, or what it bears on where it is ours.

    Args:
        paper: "P1" or "P2".
        version: Of arXiv, such as "v2"; empty where that is not known.
        place: Where in it.
    """

    paper: str
    version: str
    place: str

    def __str__(self) -> str:
        return f"{' '.join(part for part in (self.paper, self.version) if part)}, {self.place}"

    def to_json(self) -> dict[str, str]:
        """Plain data."""
        return {**asdict(self), "title": PAPERS[self.paper]}


class Claim(ABC):
    """One claim, in one file. Subclass, fill in, and put `@claim` above.

    Attributes:
        id: Short name: what `unsmooth evidence run` takes.
        number: Place in the ledger.
        section: What kind of claim it is.
        quote: Its sentence: the papers', or ours.
        wording: Whether the sentence is literally in an abstract, reconstructed, or ours.
        source: Where it is from.
        reading: How it is read here, in one sentence.
        differs: Where the reading and the sentence differ; empty for what is ours.
        for_if: What the numbers have to be for the reading to hold; committed before the runs.
        against_if: Likewise for not.
        would_decide: The smallest run that would decide where nothing is decided.
        stated_scale: Whether the reading has the scale that the sentence states: of models, of data, of method.
        studies: Names of the training studies that it draws on.
        measured_by: Another claim whose measurements it reads; by default its own.
        beyond: What the verdict does not reach, whichever it is; told beside it.
        waits_for: Whose results it waits for, where it cannot be measured by itself.
    """

    id: ClassVar[str]
    number: ClassVar[int]
    section: ClassVar[Section]
    quote: ClassVar[str]
    wording: ClassVar[Wording]
    source: ClassVar[Source]
    reading: ClassVar[str]
    differs: ClassVar[str] = ""
    for_if: ClassVar[str]
    against_if: ClassVar[str]
    would_decide: ClassVar[str]
    stated_scale: ClassVar[bool] = False
    studies: ClassVar[tuple[str, ...]] = ()
    measured_by: ClassVar[str] = ""
    beyond: ClassVar[str] = ""
    waits_for: ClassVar[str] = ""

    @property
    def rule(self) -> dict[str, str]:
        """What speaks for it and what against it."""
        return {"for_if": self.for_if, "against_if": self.against_if}

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """The seeds that `measure` uses."""
        return CLAIMS[self.measured_by].seeds(bench) if self.measured_by else bench.seeds

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Measure, at the scale of the bench, and return plain data."""
        if not self.measured_by:
            raise NotImplementedError(f"{type(self).__name__} neither measures nor says who does")
        return CLAIMS[self.measured_by].measure(bench)

    def record(self, store: Store) -> Record | None:
        """What was measured at the largest scale, for this claim or for the one it reads from; None without results."""
        names = [name for name in (self.id, self.measured_by) if name]
        found = (store.claim(name, scale) for scale in reversed(SCALES) for name in names)
        return next((record for record in found if record is not None), None)

    @abstractmethod
    def judge(self, measured: Measured) -> Judgement:
        """Apply the rule; looks at nothing but `measured`."""

    @abstractmethod
    def figure(self, measured: Measured) -> Figure:
        """Draw what was measured."""


CLAIMS = Registry[Claim]("claim")
C = TypeVar("C", bound=type[Claim])


def claim(kind: C) -> C:
    """Register a claim, if its wording is what it says: only what stands in an abstract is verbatim.

    Raises:
        UnsmoothError: A quotation that its source does not have, or another wording at the scale of a sentence.
    """
    check_wording(kind)
    CLAIMS.add(kind.id, kind())
    return kind


def check_wording(kind: type[Claim]) -> None:
    """Refuse a quotation that the abstract does not have."""
    if kind.wording == "verbatim":
        text = abstract(kind.source.paper, kind.source.version)
        if text is None or kind.quote not in text:
            hint = 'wording "reconstructed"'
            raise expected(f"the quote of {kind.id} in the abstract of {kind.source}", repr(kind.quote), hint)
    elif kind.stated_scale:
        raise expected(f"stated_scale of {kind.id} only with a verbatim quote", kind.wording, "leaving it out")


def in_order() -> list[Claim]:
    """All claims as the ledger has them."""
    return sorted(CLAIMS.values(), key=lambda one: one.number)
