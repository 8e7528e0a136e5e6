"""What the ledger says in words: for the page, the command and the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from unsmooth.evidence.finding import Wording
from unsmooth.evidence.interval import Interval
from unsmooth.evidence.ledger import Entry
from unsmooth.numbers import spoken
from unsmooth.report.series import number
from unsmooth.report.training.words import duration

STANDINGS = {
    "confirmed": "✓",
    "refuted": "✗",
    "supported here": "+",
    "not supported here": "−",
    "undecided": "?",
    "not run": "–",
}
"""What a claim may stand at, each with a sign, so that nothing rests on colour alone."""
SAYS = {"for": "+", "against": "−", "undecided": "?"}
"""What a finding may say about a claim as it is read here, likewise."""


def standing(entry: Entry) -> str:
    """The verdict, or "not run"."""
    return entry.verdict if entry.record is not None else "not run"


def in_words(interval: Interval) -> str:
    """An estimate with its interval.

    >>> in_words(Interval(-0.5, -1.0, 0.25, 3)), in_words(Interval(2.0, float("-inf"), float("inf"), 1))
    ('−0.5 [−1, 0.25]', '2 (no interval from 1)')
    >>> in_words(Interval(2.0, 1.5, float("inf"), 3))
    '2 [1.5, ∞]'
    """
    low, high = number(interval.low), number(interval.high)
    if low is None and high is None:
        return f"{spoken(interval.value, 3)} (no interval from {interval.count})"
    ends = "−∞" if low is None else spoken(low, 3), "∞" if high is None else spoken(high, 3)
    return f"{spoken(interval.value, 3)} [{', '.join(ends)}]"


def effect(entry: Entry) -> str:
    """The headline number of a claim."""
    return in_words(entry.judgement.findings[0].interval) if entry.judgement and entry.judgement.findings else "–"


def effect_of(entry: Entry) -> str:
    """What the headline number is."""
    return entry.judgement.findings[0].what if entry.judgement and entry.judgement.findings else ""


def paper(entry: Entry) -> str:
    """Which of the papers, and which version: "P1 v2"."""
    return " ".join(part for part in (entry.claim.source.paper, entry.claim.source.version) if part)


def counted(entries: Sequence[Entry]) -> str:
    """How many claims stand at what.

    >>> counted([])
    '0 claims.'
    """
    found = [standing(entry) for entry in entries]
    parts = [f"{found.count(name)} {name}" for name in STANDINGS if name in found]
    many = f"{len(found)} claim{'' if len(found) == 1 else 's'}"
    return f"{many}: {', '.join(parts)}." if parts else f"{many}."


def counts(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """A table of verdicts by wording: its head, and a row for each wording."""
    there = [name for name in STANDINGS if any(standing(entry) == name for entry in entries)]
    rows = []
    for wording in get_args(Wording):
        found = [standing(entry) for entry in entries if entry.claim.wording == wording]
        if found:
            rows.append([wording, *(str(found.count(name)) for name in there), str(len(found))])
    return ["wording", *there, "all"], rows


def said_of(entry: Entry) -> list[tuple[str, str]]:
    """How a claim is read and judged, label and text, as far as there is something to say."""
    claim = entry.claim
    undecided = entry.verdict == "undecided"
    facts = [
        ("Read here as", claim.reading),
        ("Differs from the sentence", claim.differs),
        ("For it", claim.for_if),
        ("Against it", claim.against_if),
        ("Would decide", claim.would_decide if undecided else ""),
    ]
    return [(label, text) for label, text in facts if text]


def cautions(entry: Entry) -> list[str]:
    """What to bear in mind with a verdict."""
    said = [entry.missing] if entry.missing else []
    if entry.record is None:
        return said
    if entry.record.scale != "full":
        said.append(f"Measured at scale {entry.record.scale}: it shows that the measurement runs, not what holds.")
    if entry.record.id != entry.claim.id:
        said.append(
            f"Judged from what {entry.record.id} measured: this rule was written after those numbers were known."
        )
    elif entry.rule_changed:
        labels = {"for_if": "for it", "against_if": "against it"}
        then = "; ".join(f"{labels.get(name, name)}: {text}" for name, text in entry.record.rule.items())
        said.append(f"The rule reads otherwise today than when the numbers were taken. It was: {then}.")
    return said + ([entry.claim.beyond] if entry.claim.beyond else [])


def provenance(entry: Entry) -> list[tuple[str, str]]:
    """What made the numbers, label and text; what is not known is left out."""
    if entry.record is None:
        return []
    made = entry.record.made
    seeds = entry.record.seeds
    listed = ", ".join(map(str, seeds)) if len(seeds) <= 5 else f"{len(seeds)}, from {min(seeds)} to {max(seeds)}"
    facts = [
        ("Scale", entry.record.scale),
        ("Seeds", listed),
        ("Commit", commit(made)),
        ("Hardware", str(made.get("hardware") or "")),
        ("Date", str(made.get("when") or "")),
        ("Time", duration(made["seconds"]) if made.get("seconds") else ""),
        ("GPU minutes", minutes(entry.gpu_minutes)),
        ("Studies", ", ".join(entry.claim.studies)),
    ]
    return [(label, text) for label, text in facts if text]


def commit(made: Mapping[str, Any]) -> str:
    """The commit in short, and whether the code was changed since.

    >>> commit({"commit": "0123456789abcdef", "changed": True}), commit({"commit": None})
    ('0123456789 with changes', 'unknown')
    """
    found = made.get("commit")
    return "unknown" if not found else str(found)[:10] + (" with changes" if made.get("changed") else "")


def minutes(value: float) -> str:
    """Minutes of a GPU.

    >>> minutes(0.0), minutes(0.25), minutes(123.4)
    ('none', '0.2', '123')
    """
    return "none" if not value else f"{value:.1f}" if value < 10 else f"{value:,.0f}"
