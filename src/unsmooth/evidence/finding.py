"""What a claim comes to: findings that confirm or refute it, each with an interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from unsmooth.evidence.interval import Interval

Verdict = Literal["confirmed", "refuted", "undecided"]


@dataclass(frozen=True)
class Finding:
    """One number that speaks for or against a claim.

    Args:
        what: What was estimated, such as "mean cosine at the last layer, sharpen minus plain".
        interval: The estimate.
        verdict: What it says about the claim; None for what is only reported.
    """

    what: str
    interval: Interval
    verdict: Verdict | None = None

    def __str__(self) -> str:
        said = f": {self.verdict}" if self.verdict else ""
        return f"{self.what} {self.interval}{said}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"what": self.what, **self.interval.to_json(), "verdict": self.verdict}


@dataclass(frozen=True)
class Judgement:
    """What a claim's rule makes of what was measured.

    Args:
        findings: The first one is the headline.
        words: What was found, in a sentence or two.
        verdict: By default all findings that speak have to agree: see `together`.
    """

    findings: tuple[Finding, ...]
    words: str
    verdict: Verdict


def judged(findings: Iterable[Finding], words: str) -> Judgement:
    """A judgement by the usual rule: confirmed where every finding confirms, refuted where one refutes."""
    found = tuple(findings)
    return Judgement(found, words, together(one.verdict for one in found if one.verdict is not None))


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict of several that must all hold.

    >>> together(["confirmed", "confirmed"]), together(["confirmed", "undecided"]), together(["undecided", "refuted"])
    ('confirmed', 'undecided', 'refuted')
    """
    said = set(verdicts)
    if "refuted" in said:
        return "refuted"
    return "confirmed" if said == {"confirmed"} else "undecided"


def above(interval: Interval, threshold: float = 0.0) -> Verdict:
    """Confirmed where the whole interval lies above the threshold, refuted where it lies below.

    >>> above(Interval(2.0, 1.0, 3.0, 3)), above(Interval(2.0, -1.0, 5.0, 3)), above(Interval(2.0, 1.0, 3.0, 3), 4.0)
    ('confirmed', 'undecided', 'refuted')
    """
    if interval.low > threshold:
        return "confirmed"
    return "refuted" if interval.high < threshold else "undecided"


def below(interval: Interval, threshold: float = 0.0) -> Verdict:
    """Confirmed where the whole interval lies below the threshold, refuted where it lies above."""
    if interval.high < threshold:
        return "confirmed"
    return "refuted" if interval.low > threshold else "undecided"


def within(interval: Interval, low: float, high: float) -> Verdict:
    """Confirmed where the whole interval lies inside [low, high], refuted where it lies outside altogether."""
    if low <= interval.low and interval.high <= high:
        return "confirmed"
    return "refuted" if interval.high < low or interval.low > high else "undecided"
