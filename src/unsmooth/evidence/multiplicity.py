"""How many intervals the ledger looks at, and which of its verdicts hold for all claims together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unsmooth.evidence.claim import Measured
from unsmooth.evidence.finding import Outcome
from unsmooth.evidence.interval import LEVEL, at_level
from unsmooth.evidence.ledger import Entry

ALPHA = 1 - LEVEL
LEAST = 1e-12
_HALVINGS = 20


@dataclass(frozen=True)
class Multiplicity:
    """What a reader of many intervals should know.

    Attributes:
        intervals: How many there are in all findings.
        deciding: How many of those speak for or against a claim.
        decided: How many claims are decided.
        hold: Ids of those whose verdict holds at 95 % for all decided claims together (Holm 1979).
        fall: Ids of the other decided claims.
    """

    intervals: int
    deciding: int
    decided: int
    hold: tuple[str, ...]
    fall: tuple[str, ...]

    @property
    def expected_false(self) -> float:
        """How many intervals miss their number by chance."""
        return ALPHA * self.intervals

    def __str__(self) -> str:
        fell = f", and {', '.join(self.fall)} would not" if self.fall else ""
        return (
            f"The ledger looks at {self.intervals} intervals, {self.deciding} of which speak for or against a claim; "
            f"at {100 * LEVEL:.0f} % each, about {self.expected_false:.0f} of them miss their number by chance. Of "
            f"{self.decided} decided claims, {len(self.hold)} would be decided the same at {100 * LEVEL:.0f} % for "
            f"all of them together (Holm){fell}."
        )


def multiplicity(entries: Sequence[Entry]) -> Multiplicity:
    """Count intervals, and have every decided claim judged at the levels that Holm's procedure asks for.

    The level at which a claim is no longer decided takes the place of its p-value. A claim that is for where all of its
    intervals agree needs nothing more; where one interval of several is enough to be against, each has its share.
    """
    findings = [finding for entry in entries if entry.judgement for finding in entry.judgement.findings]
    alphas = {}
    for entry in entries:
        if entry.record and entry.judgement and entry.judgement.outcome != "undecided":
            least = alpha_of(entry)
            if entry.judgement.outcome == "against":
                least *= sum(one.intervals for one in entry.judgement.findings if one.outcome)
            alphas[entry.claim.id] = least
    hold = holm(alphas)
    return Multiplicity(
        intervals=sum(one.intervals for one in findings),
        deciding=sum(one.intervals for one in findings if one.outcome),
        decided=len(alphas),
        hold=tuple(name for name in alphas if name in hold),
        fall=tuple(name for name in alphas if name not in hold),
    )


def alpha_of(entry: Entry) -> float:
    """The smallest chance of error of an interval at which a claim is decided as it is, down to 1e-12."""
    assert entry.record
    assert entry.judgement
    measured, said = entry.record.measured, entry.judgement.outcome
    if _outcome(entry, measured, LEAST) == said:
        return LEAST
    low, high = math.log(LEAST), math.log(ALPHA)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _outcome(entry, measured, math.exp(middle)) == said else (middle, high)
    return math.exp(high)


def _outcome(entry: Entry, measured: Measured, alpha: float) -> Outcome:
    with at_level(1 - alpha):
        return entry.claim.judge(measured).outcome


def holm(alphas: dict[str, float]) -> set[str]:
    """Which of several hold together at 95 %, by Holm's procedure.

    >>> sorted(holm({"a": 0.001, "b": 0.02, "c": 0.04})), sorted(holm({"a": 0.03, "b": 0.03}))
    (['a', 'b', 'c'], [])
    """
    found: set[str] = set()
    for place, name in enumerate(sorted(alphas, key=lambda one: alphas[one])):
        if alphas[name] > ALPHA / (len(alphas) - place):
            break
        found.add(name)
    return found
