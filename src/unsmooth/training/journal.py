"""What a run says of itself: lines in its log, TensorBoard's events, its manifest, and words for whoever watches."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from unsmooth.scanning.manifest import describe_versions
from unsmooth.training.config import Config
from unsmooth.training.folder import Events, Lines, RunFolder, Watchmaker
from unsmooth.training.place import Place
from unsmooth.training.timing import Timetable


@dataclass(frozen=True)
class Progress:
    """How far a run is, for whoever shows it; `note` is something out of the ordinary, in words."""

    name: str
    step: int
    steps: int
    epoch: float
    seconds: float
    said: dict[str, float]
    note: str = ""


class Journal:
    """The written side of a run; only the first process writes.

    Args:
        folder: Where to.
        table: When what happens.
        place: This process.
        tell: Called with every `Progress`.
    """

    def __init__(
        self, folder: RunFolder, table: Timetable, place: Place, tell: Callable[[Progress], None] = lambda _: None
    ) -> None:
        self.folder, self.table, self.place, self._tell = folder, table, place, tell
        self.log, self.spectra = Lines(folder.path / "log.jsonl"), Lines(folder.path / "spectra.jsonl")
        self.said: dict[str, float] = {}
        self.watch = Watchmaker()
        self._events: Events | None = None

    def open(self, step: int | None, seconds: float = 0.0, said: Mapping[str, float] | None = None) -> None:
        """Begin, or go on after `step` as if nothing had been written since."""
        self.watch, self.said = Watchmaker(seconds), dict(said or {})
        if self.place.first:
            self.log.cut(-1 if step is None else step)
            self.spectra.cut(-1 if step is None else step)
            self._events = Events(self.folder.path / "events", after=step or 0)

    def note(self, kind: str, step: int, numbers: Mapping[str, Any]) -> None:
        """Write numbers of one kind down, and show them."""
        values = {name: value for name, value in numbers.items() if isinstance(value, float)}
        self.said |= {f"{kind}/{name}": value for name, value in values.items()}
        if self._events is not None:
            self.log.add(kind=kind, step=step, epoch=self.table.epoch_after(step), **numbers)
            self._events.add(step, **{f"{kind}/{name}": value for name, value in values.items()})
        self.show(step)

    def note_spectra(self, step: int, layers: list[dict[str, Any]]) -> None:
        """Write spectra of all layers down."""
        if self.place.first:
            self.spectra.add(step=step, epoch=self.table.epoch_after(step), layers=layers)

    def show(self, step: int, note: str = "") -> None:
        """Tell how far the run is, or something out of the ordinary."""
        epoch, seconds = self.table.epoch_after(step), self.watch.seconds
        self._tell(Progress(self.folder.name, step, self.table.steps, epoch, seconds, dict(self.said), note))

    def sync(self) -> None:
        """Have everything on disk that was written so far."""
        if self.place.first:
            self.log.sync()
            self.spectra.sync()

    def close(self) -> None:
        """Write what is still held back."""
        if self._events is not None:
            self._events.close()

    def write_manifest(self, state: str, step: int, config: Config, **more: Any) -> None:
        """What the run is and how far it came: `state` is "running", "paused", "finished" or "stopped"."""
        if not self.place.first:
            return
        self.folder.write_manifest(
            {
                "versions": describe_versions(),
                "device": _named(self.place.device),
                "processes": self.place.ranks,
                "recipe": config.recipe,
                "size": config.size,
                "seed": config.seed,
                "remedies": list(config.remedies),
                "steps": self.table.steps,
                "done": step,
                "seconds": self.watch.seconds,
                "state": state,
                "last": self.said,
                **more,
            }
        )


def _named(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.processor() or platform.machine()})"
