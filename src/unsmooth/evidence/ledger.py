"""The ledger: every claim with its verdict, how large the effect is, and how sure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError
from unsmooth.evidence.claim import Claim, in_order
from unsmooth.evidence.finding import Judgement, Verdict, verdict_of
from unsmooth.evidence.records import Record, Store, Trained

FOLDER = Path("evidence")


@dataclass(frozen=True)
class Entry:
    """One line of the ledger; without a record nothing was measured yet, and the claim is undecided.

    Args:
        claim: Which.
        record: What was measured.
        judgement: What the claim's rule makes of it.
        gpu_minutes: What the runs behind it took.
        missing: Why there is no record, where more is known than that there is none.
    """

    claim: Claim
    record: Record | None = None
    judgement: Judgement | None = None
    gpu_minutes: float = 0.0
    missing: str = ""

    @property
    def verdict(self) -> Verdict:
        """Undecided where nothing was measured."""
        outcome = self.judgement.outcome if self.judgement else "undecided"
        return verdict_of(outcome, self.claim.wording, stated_scale=self.claim.stated_scale)

    def to_json(self) -> dict[str, Any]:
        """Plain data: what `unsmooth evidence --json` prints."""
        headline = self.judgement.findings[0] if self.judgement and self.judgement.findings else None
        interval = headline.interval.to_json() if headline else {}
        claim = self.claim
        return {
            "id": claim.id,
            "number": claim.number,
            "section": claim.section,
            "quote": claim.quote,
            "wording": claim.wording,
            "source": claim.source.to_json(),
            "reading": claim.reading,
            "differs": claim.differs,
            **claim.rule,
            "verdict": self.verdict,
            "measured": self.record is not None,
            "would_decide": claim.would_decide if self.verdict == "undecided" else None,
            "effect": interval.get("value"),
            "interval": [interval.get("low"), interval.get("high")],
            "effect_of": headline.what if headline else None,
            "words": self.judgement.words if self.judgement else self.missing or None,
            "findings": [finding.to_json() for finding in self.judgement.findings] if self.judgement else [],
            "rule_changed_since": self.rule_changed,
            "beyond": claim.beyond,
            "seeds": list(self.record.seeds) if self.record else [],
            "scale": self.record.scale if self.record else None,
            "gpu_minutes": round(self.gpu_minutes, 2),
            "commit": self.record.made.get("commit") if self.record else None,
            "hardware": self.record.made.get("hardware") if self.record else None,
        }

    @property
    def rule_changed(self) -> bool:
        """Whether the rule reads otherwise today than when the numbers were taken, or is younger than they are."""
        return self.record is not None and dict(self.record.rule) != self.claim.rule


def ledger(results: str | Path | None = None) -> list[Entry]:
    """All claims in order, each with what was found at the largest scale that was run.

    Args:
        results: Folder that ``unsmooth evidence run`` wrote; None takes ``evidence/`` here, or else the results that
            come with the package.
    """
    store = Store(results_folder() if results is None else Path(results))
    return [entry_of(claim, store) for claim in in_order()]


def results_folder() -> Path:
    """``evidence/`` here where it has results, else the package's own."""
    if any(FOLDER.glob("*/claims/*.json")):
        return FOLDER
    packaged = Path(str(files("unsmooth.evidence").joinpath("published")))
    in_checkout = Path(__file__).resolve().parents[3] / FOLDER
    return packaged if packaged.is_dir() else in_checkout


def entry_of(claim: Claim, store: Store) -> Entry:
    """A claim with what a folder of results has for it."""
    record = claim.record(store)
    if record is None:
        return Entry(claim, missing=f"Not run yet: waits for {claim.waits_for}." if claim.waits_for else "")
    try:
        judgement = claim.judge(record.measured)
    except UnsmoothError as error:  # what was measured for another claim may lack what this one asks for
        return Entry(claim, missing=str(error))
    return Entry(claim, record, judgement, gpu_minutes(claim, record, store))


def gpu_minutes(claim: Claim, record: Record, store: Store) -> float:
    """Minutes of a GPU behind a claim: its own, and those of all runs it draws on, which it may share with others."""
    own = float(record.made["seconds"]) if not claim.studies and "CPU" not in str(record.made["hardware"]) else 0.0
    return own / 60 + minutes_of(run for name in claim.studies for run in store.study(name, record.scale))


def minutes_of(runs: Iterable[Trained]) -> float:
    """Minutes of a GPU that runs took; those that went side by side share them."""
    made = (run.made for run in runs)
    return (
        sum(float(one["seconds"]) / int(one["side_by_side"]) for one in made if "CPU" not in str(one["hardware"])) / 60
    )
