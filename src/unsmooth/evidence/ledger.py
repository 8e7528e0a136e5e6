"""The ledger: every claim with its verdict, how large the effect is, and how sure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from unsmooth.evidence.claim import Claim, in_order
from unsmooth.evidence.finding import Judgement, Verdict
from unsmooth.evidence.store import Record, Store
from unsmooth.evidence.study import Trained

FOLDER = Path("evidence")


@dataclass(frozen=True)
class Entry:
    """One line of the ledger; without a record nothing was measured yet, and the claim is undecided."""

    claim: Claim
    record: Record | None = None
    judgement: Judgement | None = None
    gpu_minutes: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Undecided where nothing was measured."""
        return self.judgement.verdict if self.judgement else "undecided"

    def to_json(self) -> dict[str, Any]:
        """Plain data: what `unsmooth evidence --json` prints."""
        headline = self.judgement.findings[0] if self.judgement else None
        interval = headline.interval.to_json() if headline else {}
        return {
            "id": self.claim.id,
            "source": self.claim.source,
            "statement": self.claim.statement,
            "verdict": self.verdict,
            "effect": interval.get("value"),
            "interval": [interval.get("low"), interval.get("high")],
            "seeds": list(self.record.seeds) if self.record else [],
            "effect_of": headline.what if headline else None,
            "scale": self.record.scale if self.record else None,
            "words": self.judgement.words if self.judgement else None,
            "findings": [finding.to_json() for finding in self.judgement.findings] if self.judgement else [],
            "confirmed_if": self.claim.confirmed_if,
            "refuted_if": self.claim.refuted_if,
            "rule_changed_since": self.rule_changed,
            "beyond": self.claim.beyond,
            "gpu_minutes": round(self.gpu_minutes, 2),
            "commit": self.record.made.get("commit") if self.record else None,
            "hardware": self.record.made.get("hardware") if self.record else None,
        }

    @property
    def rule_changed(self) -> bool:
        """Whether the rule reads otherwise today than when the numbers were taken."""
        now = {"confirmed_if": self.claim.confirmed_if, "refuted_if": self.claim.refuted_if}
        return self.record is not None and dict(self.record.rule) != now


def ledger(results: str | Path | None = None) -> list[Entry]:
    """All claims in order, each with what was found at the largest scale that was run.

    Args:
        results: Folder that ``unsmooth evidence run`` wrote; None takes ``evidence/`` here, or else the results that
            come with the package.
    """
    store = Store(results_folder() if results is None else Path(results))
    return [_entry(claim, store) for claim in in_order()]


def results_folder() -> Path:
    """``evidence/`` here where it has results, else the package's own."""
    if any(FOLDER.glob("*/claims/*.json")):
        return FOLDER
    packaged = Path(str(files("unsmooth.evidence").joinpath("published")))
    in_checkout = Path(__file__).resolve().parents[3] / FOLDER
    return packaged if packaged.is_dir() else in_checkout


def _entry(claim: Claim, store: Store) -> Entry:
    record = store.best_claim(claim.id)
    if record is None:
        return Entry(claim)
    return Entry(claim, record, claim.judge(record.measured), gpu_minutes(claim, record, store))


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
