"""A run as its folder tells it while it goes on: that of a monitor, or of ``unsmooth train``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.monitor.reading import Reading, from_line
from unsmooth.monitor.sinks import FILE
from unsmooth.training.folder import Line, by_step, read_lines
from unsmooth.training.trained_run import is_run, read_run

_DEEPEST = 3  # folders below the one that is named: OUT/variant/seed-0


@dataclass(frozen=True)
class Watched:
    """How far a run is.

    Attributes:
        folder: Where it was read from.
        name: What it is called.
        state: "running", "finished", "stopped" or "paused"; a run that was killed says "running" for ever.
        readings: Every look so far, by step.
        events: Alarms of rules and notes of trouble, as (step, kind, text).
        loss: Step and training loss, where it is known.
        about: What the head of the file says.
        notes: What is missing or broken in the files.
    """

    folder: Path
    name: str
    state: str
    readings: tuple[Reading, ...] = ()
    events: tuple[tuple[int, str, str], ...] = ()
    loss: tuple[tuple[int, float], ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def curves(self) -> tuple[tuple[str, str, str], ...]:
        """Metrics, sites and stacks that were measured, in the order of the file."""
        return tuple(dict.fromkeys((row.metric, row.site, row.stack) for look in self.readings for row in look.rows))


def find_watched(folder: str | Path) -> list[Path]:
    """The folder itself where it is one of a run, or else the runs within it."""
    path = Path(folder)
    found = list(_below(path, _DEEPEST)) if path.is_dir() else []
    if not found:
        got = "nothing" if not path.exists() else "a folder without one" if path.is_dir() else "a file"
        hint = "the `out` of a Monitor, or of `unsmooth train`"
        raise expected(f"a run with {FILE} or log.jsonl at {str(path)!r}", got, hint)
    return found


def read_watched(folder: str | Path) -> Watched:
    """Read a run as far as it came."""
    path = Path(folder)
    return _of_monitor(path) if (path / FILE).is_file() else _of_training(path)


def changed(folder: Path) -> tuple[object, ...]:
    """Differs as soon as something was written."""
    names = (FILE, "log.jsonl", "manifest.json")
    found = (path.stat() for name in names if (path := folder / name).is_file())
    return tuple((one.st_mtime_ns, one.st_size) for one in found)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / FILE).is_file() or is_run(folder):
        yield folder
    elif depth:
        for inner in sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")):
            yield from _below(inner, depth - 1)


def _of_monitor(folder: Path) -> Watched:
    notes: list[str] = []
    head: Line = {}
    lines: list[Line] = []
    events: list[tuple[int, str, str]] = []
    state = "running"
    for line in read_lines(folder / FILE, notes):
        kind, step = line.get("kind"), line.get("step")
        if kind == "start" and isinstance(step, int):
            # A run that was taken up here: what came after this step is void.
            head, state = line, "running"
            lines = [one for one in lines if one["step"] <= step and step]
            events = [one for one in events if one[0] <= step and step]
        elif kind == "reading" and isinstance(step, int):
            lines.append(line)
        elif kind in ("alarm", "note") and isinstance(step, int):
            events.append((step, str(kind), str(line.get("text"))))
        elif kind == "end":
            state = str(line.get("state"))
    readings = []
    for line in by_step(lines):
        try:
            readings.append(from_line(line))
        except UnsmoothError:
            notes.append(f"The reading of step {line['step']} is broken and was left out.")
    about = {key: value for key, value in head.items() if key not in ("kind", "time", "step", "name")}
    name = str(head.get("name") or folder.name)
    return Watched(folder, name, state, tuple(readings), tuple(events), about=about, notes=tuple(notes))


def _of_training(folder: Path) -> Watched:
    run = read_run(folder)
    readings = tuple(Reading(one.step, one.scan.rows, healthy=one.scan.healthy) for one in run.measurements)
    loss = tuple((line["step"], line["loss"]) for line in run.training if isinstance(line.get("loss"), float))
    about = {"recipe": run.setting("recipe"), "remedies": list(run.remedies), "steps": run.setting("steps")}
    return Watched(folder, folder.name, run.state or "running", readings, (), loss, about, run.notes)
