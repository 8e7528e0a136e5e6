"""What a claim comes to: findings that speak for or against its reading, and the word that the ledger has for that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from unsmooth.evidence.interval import Interval, share

Wording = Literal["verbatim", "reconstructed", "ours"]
"""Of a claim's sentence: literally in an abstract, made from public reviews and summaries, or our own."""

Outcome = Literal["for", "against", "undecided"]
"""What numbers say about a claim as it is read here."""

Verdict = Literal["confirmed", "refuted", "supported here", "not supported here", "undecided"]
"""What the ledger says about a claim's sentence."""

RARE = 0.01


def verdict_of(outcome: Outcome, wording: Wording, *, stated_scale: bool) -> Verdict:
    """The only place where a sentence is called confirmed or refuted.

    Args:
        outcome: What the numbers say about the reading.
        wording: Of the sentence.
        stated_scale: Whether it was judged at the scale that it states, of models, data and method.

    >>> verdict_of("for", "verbatim", stated_scale=True), verdict_of("against", "verbatim", stated_scale=False)
    ('confirmed', 'not supported here')
    >>> verdict_of("for", "reconstructed", stated_scale=True), verdict_of("undecided", "verbatim", stated_scale=True)
    ('supported here', 'undecided')
    """
    if outcome == "undecided":
        return "undecided"
    if wording == "verbatim" and stated_scale:
        return "confirmed" if outcome == "for" else "refuted"
    return "supported here" if outcome == "for" else "not supported here"


@dataclass(frozen=True)
class Finding:
    """One number that speaks for or against a claim.

    Args:
        what: What was estimated, such as "mean cosine at the last layer, sharpen minus plain".
        interval: The estimate.
        outcome: What it says about the claim; None for what is only reported.
        intervals: How many intervals it stands for: more than one where it is the worst of several.
    """

    what: str
    interval: Interval
    outcome: Outcome | None = None
    intervals: int = 1

    def __str__(self) -> str:
        said = f": {self.outcome}" if self.outcome else ""
        return f"{self.what} {self.interval}{said}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"what": self.what, **self.interval.to_json(), "outcome": self.outcome}


@dataclass(frozen=True)
class Judgement:
    """What a claim's rule makes of what was measured.

    Args:
        findings: The first one is the headline.
        words: What was found, in a sentence or two.
        outcome: By default all findings that speak have to agree: see `together`.
    """

    findings: tuple[Finding, ...]
    words: str
    outcome: Outcome


def judged(findings: Iterable[Finding], words: str) -> Judgement:
    """A judgement by the usual rule: for where every finding that speaks is for, against where one is against."""
    found = tuple(findings)
    return Judgement(found, words, together(one.outcome for one in found if one.outcome is not None))


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """One outcome of several that must all hold.

    >>> together(["for", "for"]), together(["for", "undecided"]), together(["undecided", "against"])
    ('for', 'undecided', 'against')
    """
    said = set(outcomes)
    if "against" in said:
        return "against"
    return "for" if said == {"for"} else "undecided"


def above(interval: Interval, threshold: float = 0.0) -> Outcome:
    """For where the whole interval lies above the threshold, against where it lies below.

    >>> above(Interval(2.0, 1.0, 3.0, 3)), above(Interval(2.0, -1.0, 5.0, 3)), above(Interval(2.0, 1.0, 3.0, 3), 4.0)
    ('for', 'undecided', 'against')
    """
    if interval.low > threshold:
        return "for"
    return "against" if interval.high < threshold else "undecided"


def below(interval: Interval, threshold: float = 0.0) -> Outcome:
    """For where the whole interval lies below the threshold, against where it lies above."""
    if interval.high < threshold:
        return "for"
    return "against" if interval.low > threshold else "undecided"


def within(interval: Interval, low: float, high: float) -> Outcome:
    """For where the whole interval lies inside [low, high], against where it lies outside altogether."""
    if low <= interval.low and interval.high <= high:
        return "for"
    return "against" if interval.high < low or interval.low > high else "undecided"


def never(what: str, violations: int, of: int) -> Finding:
    """The rule for "never" and "always": one violation is against; none is for once less than one in 100 is left room.

    Args:
        what: What was counted, in words.
        violations: How often the statement failed.
        of: How often it was tried.

    Example:
        >>> [never("", count, tries).outcome for count, tries in ((0, 1000), (0, 50), (1, 1000))]
        ['for', 'undecided', 'against']
    """
    found = share(violations, of)
    if violations:
        return Finding(what, found, "against")
    return Finding(what, found, "for" if found.high < RARE else "undecided")
