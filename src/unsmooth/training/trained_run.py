"""A training run as its folder tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import below, read_json
from unsmooth.training.folder import Line, by_step, read_lines

if TYPE_CHECKING:
    from unsmooth.scanning.result import Scan


_DEEPEST = 3  # folders below the one that is named: OUT/variant/seed-0


@dataclass(frozen=True)
class Measurement:
    """How alike tokens were at one moment of the training."""

    step: int
    epoch: float | None
    scan: Scan


@dataclass(frozen=True)
class TrainedRun:
    """What a run's folder holds.

    Attributes:
        folder: Where it was read from.
        config: The settings; empty where the file is missing.
        manifest: What ran, on what, and how it ended; empty where the file is missing.
        training: Lines of the log written while training, by step.
        evaluations: Lines of the log written by evaluations, by step.
        measurements: Scans, by step.
        spectra: Lines of spectra.jsonl, by step.
        notes: What is missing or broken, and was left out.
    """

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    training: tuple[Line, ...] = ()
    evaluations: tuple[Line, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    spectra: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def seed(self) -> Any:
        """The seed, from the manifest or from the settings; None where neither says."""
        return self.setting("seed")

    @property
    def state(self) -> str:
        """One of "running", "paused", "finished" and "stopped"; empty where the manifest does not say."""
        return str(self.manifest.get("state") or "")

    @property
    def remedies(self) -> tuple[str, ...]:
        """The remedies, in the order in which they were applied."""
        given = self.setting("remedies")
        return tuple(map(str, given)) if isinstance(given, list | tuple) else ()

    @property
    def data(self) -> Mapping[str, Any]:
        """What the manifest says of the data, or else the settings."""
        given = self.setting("data")
        return given if isinstance(given, Mapping) else {"name": given} if given else {}

    @property
    def metrics(self) -> tuple[str, ...]:
        """What evaluations measured besides the loss, in the order of the log."""
        fixed = {"kind", "step", "epoch", "loss"}
        names = dict.fromkeys(name for line in self.evaluations for name in line)
        return tuple(name for name in names if name not in fixed and self._is_number(name))

    def setting(self, name: str) -> Any:
        """A top-level entry of the manifest, or else of the settings."""
        found = self.manifest.get(name)
        return self.config.get(name) if found is None else found

    def _is_number(self, name: str) -> bool:
        values = (line.get(name) for line in self.evaluations)
        return any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def is_run(folder: Path) -> bool:
    """Whether `unsmooth train` wrote this folder."""
    if (folder / "log.jsonl").is_file():
        return True
    return "recipe" in _read_object(folder / "manifest.json")[0]


def find_runs(folder: str | Path) -> list[Path]:
    """The folder itself where it is a run, or else the runs within it, seed 2 before seed 10."""
    path = Path(folder)
    if not path.is_dir():
        raise _no_run(path, "nothing" if not path.exists() else "a file")
    found = list(_runs_below(path, _DEEPEST))
    if not found:
        raise _no_run(path, "a folder without a log.jsonl")
    return found


def read_run(folder: str | Path) -> TrainedRun:
    """Read what a run left in its folder.

    A run that is going on or was cut off is read as far as it came: what is missing or broken is left out, and
    `TrainedRun.notes` names it.

    Args:
        folder: Written by ``unsmooth train``.
    """
    path = Path(folder)
    if not path.is_dir() or not is_run(path):
        raise _no_run(path, "a folder without a log.jsonl" if path.is_dir() else "none")
    notes: list[str] = []
    config, manifest = _object(path / "config.json", notes), _object(path / "manifest.json", notes)
    log = read_lines(path / "log.jsonl", notes)
    return TrainedRun(
        folder=path,
        config=config,
        manifest=manifest,
        training=by_step(line for line in log if line.get("kind") == "train"),
        evaluations=by_step(line for line in log if line.get("kind") == "evaluation"),
        measurements=_measurements(path, log, notes),
        spectra=by_step(read_lines(path / "spectra.jsonl", notes)),
        notes=tuple(notes),
    )


def _measurements(folder: Path, log: list[Line], notes: list[str]) -> tuple[Measurement, ...]:
    """Those that the log names, and those that only their folders tell of."""
    from unsmooth.scanning import load_scan

    named = {line["step"]: line for line in by_step(line for line in log if line.get("kind") == "measurement")}
    places: dict[int, Path] = {}
    found, broken = [], []
    for step, line in named.items():
        try:
            places[step] = below(folder, line.get("scan"))
        except UnsmoothError:
            broken.append(step)
    for place in sorted(folder.glob("scans/step-*")):
        digits = place.name.removeprefix("step-")
        if digits.isascii() and digits.isdigit() and len(digits) < 19:
            places.setdefault(int(digits), place)
    for step in sorted(places):
        try:
            epoch = named.get(step, {}).get("epoch")
            epoch = epoch if isinstance(epoch, int | float) else None
            found.append(Measurement(step, epoch, load_scan(places[step])))
        except UnsmoothError:
            broken.append(step)
    if lost := set(broken) - {one.step for one in found}:
        notes.append(f"No whole scan was found of step {', '.join(map(str, sorted(lost)))}.")
    if not places:
        notes.append("No scan was found: nothing is known of token similarity.")
    return tuple(found)


def _object(path: Path, notes: list[str]) -> dict[str, Any]:
    content, trouble = _read_object(path)
    if trouble:
        notes.append(f"{path.name} {trouble}.")
    return content


def _read_object(path: Path) -> tuple[dict[str, Any], str]:
    try:
        return read_json(path), ""
    except FileNotFoundError:
        return {}, "is missing"
    except UnsmoothError as error:
        return {}, f"cannot be read ({str(error).partition(' Try ')[0].rstrip('.')})"


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
    elif depth:
        for inner in sorted((one for one in folder.iterdir() if one.is_dir()), key=_natural):
            if not inner.name.startswith("."):
                yield from _runs_below(inner, depth - 1)


def _natural(path: Path) -> list[Any]:
    """Numbers in names by size; text and numbers alternate, so that they are never compared."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def _no_run(path: Path, got: str) -> UnsmoothError:
    return expected(f"a run that `unsmooth train` wrote at {str(path)!r}", got, "`unsmooth train … --out DIR` first")
