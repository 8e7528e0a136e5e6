"""The training runs behind the claims, variant by variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unsmooth.evidence.interval import over_seeds
from unsmooth.evidence.ledger import Entry, minutes_of
from unsmooth.evidence.records import SCALES, Scale, Store, Trained
from unsmooth.evidence.study import STUDIES
from unsmooth.numbers import spoken
from unsmooth.report.evidence.words import in_words
from unsmooth.report.series import number
from unsmooth.report.training.words import duration


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study at the largest scale that has any.

    Attributes:
        name: The study's.
        about: In one sentence; empty for one that is not known any more.
        scale: At which they ran.
        runs: In the order of variants and seeds.
    """

    name: str
    about: str
    scale: Scale
    runs: tuple[Trained, ...]

    @property
    def variants(self) -> dict[str, list[Trained]]:
        """Runs by variant."""
        found: dict[str, list[Trained]] = {}
        for run in self.runs:
            found.setdefault(run.variant, []).append(run)
        return found

    @property
    def gpu_minutes(self) -> float:
        """Of all runs together."""
        return minutes_of(self.runs)


def studies_of(entries: Sequence[Entry], store: Store) -> list[StudyRuns]:
    """Every study with results: those of the claims in their order, then the rest."""
    names = dict.fromkeys([name for entry in entries for name in entry.claim.studies] + list(STUDIES))
    found = []
    for name in names:
        for scale in reversed(SCALES):
            if runs := store.study(name, scale):
                about = STUDIES[name].about if name in STUDIES else ""
                found.append(StudyRuns(name, about, scale, tuple(runs)))
                break
    return found


def last_number(run: Trained, name: str) -> float | None:
    """Of the last evaluation that has it; None for a run that never came to one."""
    told = (number(line[name]) for line in reversed(run.evaluations) if name in line)
    return next((value for value in told if value is not None), None)


def accuracy_of(run: Trained) -> float | None:
    """At the end; of a classifier that lost its numbers that of guessing, as the claims count it."""
    network: Any = run.config.get("network")
    counted = isinstance(network, Mapping) and "classes" in network and run.made.get("state") == "stopped"
    return number(run.accuracy) if counted else last_number(run, "accuracy")


def over_runs(values: Iterable[float | None]) -> str:
    """Mean and interval of what there is, or the one value.

    >>> over_runs([1.0, None, 3.0]), over_runs([1.0]), over_runs([])
    ('2 [−10.7, 14.7]', '1', '–')
    """
    known = [value for value in values if value is not None]
    return in_words(over_seeds(known)) if len(known) > 1 else spoken(known[0] if known else None, 3)


def variant_cells(runs: Sequence[Trained]) -> dict[str, str]:
    """What the page tells of a variant, by column."""
    states = [str(run.made.get("state")) for run in runs]
    ended = {state: states.count(state) for state in dict.fromkeys(states)}
    first = runs[0].made
    return {
        "seeds": ", ".join(str(run.seed) for run in runs),
        "outcome": ", ".join(state if len(ended) == 1 else f"{count} {state}" for state, count in ended.items()),
        "accuracy": over_runs(accuracy_of(run) for run in runs),
        "test loss": over_runs(last_number(run, "loss") for run in runs),
        "parameters": _count(first.get("parameters")),
        "steps": _count(first.get("steps")),
        "time of a run": duration(_mean([run.made.get("seconds") for run in runs])),
        "GPU minutes": f"{minutes_of(runs):.1f}",
    }


def data_in_words(run: Trained) -> str:
    """Which data a run saw."""
    data: Any = run.made.get("data")
    if not isinstance(data, Mapping):
        return "unknown data"
    name = str(data.get("name", "unknown data"))
    return f"{name} (synthetic)" if data.get("synthetic") and name != "synthetic" else name


def _mean(values: Sequence[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"
