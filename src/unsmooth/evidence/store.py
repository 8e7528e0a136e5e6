"""Results on disk: one JSON file per claim and per study, below a folder for each scale.

evidence/full/claims/eigenvalues-decide.json
evidence/full/studies/steering.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unsmooth.evidence.scale import SCALES, Scale
from unsmooth.evidence.study import Trained
from unsmooth.evidence.written import read_results, write_json


@dataclass(frozen=True)
class Record:
    """What was measured for a claim, and what made it.

    Attributes:
        id: The claim's.
        scale: At which scale.
        seeds: Which were used.
        rule: `for_if` and `against_if` as they stood when it was measured.
        made: Commit, hardware, versions, when, seconds.
        measured: The numbers.
    """

    id: str
    scale: Scale
    seeds: tuple[int, ...]
    rule: Mapping[str, str]
    made: Mapping[str, Any]
    measured: Mapping[str, Any]


@dataclass(frozen=True)
class _Study:
    study: str
    scale: Scale
    runs: tuple[Trained, ...]


@dataclass(frozen=True)
class Store:
    """A folder of results."""

    path: Path

    def write_claim(self, record: Record) -> Path:
        """Put a claim's numbers in their place."""
        return write_json(self._claim(record.id, record.scale), asdict(record))

    def claim(self, id: str, scale: Scale) -> Record | None:
        """What was measured at a scale; None where nothing was."""
        return read_results(self._claim(id, scale), Record)

    def best_claim(self, id: str) -> Record | None:
        """What was measured at the largest scale."""
        found = (self.claim(id, scale) for scale in reversed(SCALES))
        return next((record for record in found if record is not None), None)

    def write_study(self, name: str, scale: Scale, trained: Sequence[Trained]) -> Path:
        """Put the runs of a study in their place, in the order of variants and seeds as given."""
        return write_json(
            self._study(name, scale), {"study": name, "scale": scale, "runs": [asdict(run) for run in trained]}
        )

    def study(self, name: str, scale: Scale) -> list[Trained]:
        """The runs of a study that are there; empty where none is."""
        found = read_results(self._study(name, scale), _Study)
        return [] if found is None else list(found.runs)

    def _claim(self, id: str, scale: Scale) -> Path:
        return self.path / scale / "claims" / f"{id}.json"

    def _study(self, name: str, scale: Scale) -> Path:
        return self.path / scale / "studies" / f"{name}.json"
