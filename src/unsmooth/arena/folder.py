"""The files of an arena: results, one JSON file per run, and the folders of the runs themselves."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unsmooth.arena.plan import Entrant, Plan, slug
from unsmooth.errors import UnsmoothError
from unsmooth.evidence.study import Trained
from unsmooth.evidence.written import read_results, write_json
from unsmooth.files import check_writable
from unsmooth.training import RunFolder
from unsmooth.training.stopwatch import Timing


@dataclass(frozen=True)
class ArenaFolder:
    """Where everything about an arena lies.

    OUT/results/MODEL/model.json                      how many steps its runs make, and why
    OUT/results/MODEL/REMEDY/timing.json              what a step costs
    OUT/results/MODEL/REMEDY/rate-0.001.json          a run that chooses a rate
    OUT/results/MODEL/REMEDY/seed-0-rate-0.001.json   a run that is scored
    OUT/results/MODEL/REMEDY/trouble.json             why there is none: refused, or failed
    OUT/runs/MODEL/REMEDY/seed-0-rate-0.001/          the run itself

    Args:
        path: OUT. All that is needed to go on, but for runs that are under way.
        apart: Folder of the runs where it is not in OUT: they are large.
    """

    path: Path
    apart: Path | None = None

    @property
    def runs(self) -> Path:
        """Of training runs."""
        return self.apart or self.path / "runs"

    @property
    def begun(self) -> bool:
        """Whether anything was settled here, or is about to be."""
        return (self.path / "results").exists()

    def check_writable(self) -> None:
        """Create what is missing and try to write there, before any work is done for it."""
        try:
            for path in (self.path, self.apart):
                if path is not None:
                    check_writable(path)
                    path.mkdir(parents=True, exist_ok=True)
        except UnsmoothError:
            self.forget_unbegun()
            raise

    def forget_unbegun(self) -> None:
        """Take the folders away again where nothing could be begun in them."""
        for path in (self.path, self.apart) if not self.begun else ():
            with suppress(OSError):  # somebody's own files
                if path is not None:
                    (path / ".lock").unlink(missing_ok=True)
                    path.rmdir()

    def written(self) -> dict[Path, int]:
        """Every file of results and when it was written, to tell whether any is new."""
        found = dict[Path, int]()
        for path in (self.path / "results").rglob("*.json"):
            with suppress(FileNotFoundError):  # another process has just taken it away
                found[path] = path.stat().st_mtime_ns
        return found

    def unnamed(self, plan: Plan) -> list[str]:
        """Places of entrants that have scores here and are not in the plan, such as those of an earlier command."""
        named = {entrant.place for entrant in plan.entrants}
        scored = {path.parent for path in (self.path / "results").glob("*/*/seed-*.json")}
        return sorted({f"{path.parent.name}/{path.name}" for path in scored} - named)

    def results(self, entrant: Entrant) -> Path:
        """Of one entrant."""
        return self.path / "results" / entrant.place

    def model(self, name: str) -> dict[str, Any] | None:
        """What was settled for a model before its first run."""
        return read_results(self._model(name))

    def write_model(self, name: str, settled: dict[str, Any]) -> None:
        """Once; its runs rest on it."""
        write_json(self._model(name), settled)

    def _model(self, name: str) -> Path:
        return self.path / "results" / slug(name) / "model.json"

    def timing(self, entrant: Entrant) -> Timing | None:
        """What a step costs."""
        return read_results(self.results(entrant) / "timing.json", Timing)

    def write_timing(self, entrant: Entrant, timing: Timing) -> None:
        """Put it in its place."""
        write_json(self.results(entrant) / "timing.json", asdict(timing))

    def outcome(self, entrant: Entrant, run: str) -> Trained | None:
        """What is kept of a run, such as "rate-0.001"; None where it did not come to its end yet."""
        return read_results(self.results(entrant) / f"{run}.json", Trained)

    def kept(self, entrant: Entrant) -> list[str]:
        """Names of all runs that came to their end, those of rates that are not looked at any more included."""
        found = self.results(entrant).glob("*.json")
        return sorted(path.stem for path in found if path.stem.startswith(("rate-", "seed-")))

    def write_outcome(self, entrant: Entrant, run: str, trained: Trained) -> None:
        """Put it in its place; only then what the run does not need any more is removed."""
        write_json(self.results(entrant) / f"{run}.json", asdict(trained))
        self.tidy(entrant, run)

    def tidy(self, entrant: Entrant, run: str) -> None:
        """Remove checkpoints of a run that is over; of one that chose a rate the weights too."""
        folder = RunFolder(self.runs / entrant.place / run)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
        if run.startswith("rate-"):
            shutil.rmtree(folder.final, ignore_errors=True)
            shutil.rmtree(folder.average, ignore_errors=True)

    def trouble(self, entrant: Entrant) -> dict[str, Any] | None:
        """Why an entrant has no runs: its `state`, "refused" or "failed", the `reason`, the `call` that found it."""
        return read_results(self.results(entrant) / "trouble.json")

    def write_trouble(self, entrant: Entrant, state: str, reason: str, call: str) -> None:
        """Say why there is nothing; another call tries again."""
        write_json(self.results(entrant) / "trouble.json", {"state": state, "reason": reason, "call": call})

    def forget_trouble(self, entrant: Entrant) -> None:
        """It is over."""
        (self.results(entrant) / "trouble.json").unlink(missing_ok=True)
