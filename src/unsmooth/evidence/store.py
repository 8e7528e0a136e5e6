"""Results on disk: one JSON file per claim and per study, below a folder for each scale.

evidence/paper/claims/eigenvalues-decide.json
evidence/paper/studies/steering.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unsmooth.errors import expected
from unsmooth.evidence.scale import SCALES, Scale
from unsmooth.evidence.study import Trained
from unsmooth.files import finite, write_whole

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What was measured for a claim, and what made it.

    Attributes:
        id: The claim's.
        scale: At which scale.
        seeds: Which were used.
        rule: `confirmed_if` and `refuted_if` as they stood when it was measured.
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
class Store:
    """A folder of results."""

    path: Path

    def write_claim(self, record: Record) -> Path:
        """Put a claim's numbers in their place."""
        return _write(self._claim(record.id, record.scale), asdict(record))

    def claim(self, id: str, scale: Scale) -> Record | None:
        """What was measured at a scale; None where nothing was."""
        content = _read(self._claim(id, scale))
        if content is None:
            return None
        try:
            return Record(**{**content, "seeds": tuple(content["seeds"])})
        except (TypeError, KeyError):
            raise _broken(self._claim(id, scale)) from None

    def best_claim(self, id: str) -> Record | None:
        """What was measured at the largest scale."""
        found = (self.claim(id, scale) for scale in reversed(SCALES))
        return next((record for record in found if record is not None), None)

    def write_study(self, name: str, scale: Scale, trained: Sequence[Trained]) -> Path:
        """Put the runs of a study in their place, in the order of variants and seeds as given."""
        return _write(
            self._study(name, scale), {"study": name, "scale": scale, "runs": [asdict(run) for run in trained]}
        )

    def study(self, name: str, scale: Scale) -> list[Trained]:
        """The runs of a study that are there; empty where none is."""
        path = self._study(name, scale)
        content = _read(path)
        if content is None:
            return []
        try:
            return [_trained(run) for run in content["runs"]]
        except (TypeError, KeyError, AttributeError):
            raise _broken(path) from None

    def _claim(self, id: str, scale: Scale) -> Path:
        return self.path / scale / "claims" / f"{id}.json"

    def _study(self, name: str, scale: Scale) -> Path:
        return self.path / scale / "studies" / f"{name}.json"


def _trained(run: Mapping[str, Any]) -> Trained:
    lists = {"evaluations": tuple(run["evaluations"]), "spectra": tuple(run["spectra"])}
    similarity = {metric: tuple(moments) for metric, moments in run["similarity"].items()}
    return Trained(**{**run, **lists, "similarity": similarity})


def _write(path: Path, content: Mapping[str, Any]) -> Path:
    return write_whole(path, json.dumps(finite({"format": FORMAT, **content}), ensure_ascii=False, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise _broken(path) from None
    if not isinstance(content, dict):
        raise _broken(path)
    if (form := content.pop("format", None)) != FORMAT:
        raise expected(
            f"results of format {FORMAT}", f"format {form} in {path}", "the version of unsmooth that wrote it"
        )
    return content


def _broken(path: Path) -> Exception:
    return expected(f"whole results in {path}", "a broken file", "removing it, and `unsmooth evidence run` again")
