"""The folder of a run: its settings, what it is, its log, and where everything else goes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.executing.holding import NOTE, held
from unsmooth.files import (
    DRAFT,
    check_count,
    check_writable,
    finite,
    parse_json,
    read_json,
    read_text,
    sync_file,
    write_whole,
)
from unsmooth.training.config import Config
from unsmooth.training.plain import from_plain, to_plain

Line = dict[str, Any]


def read_lines(path: Path, notes: list[str]) -> list[Line]:
    """Every whole line; what is missing or broken is told in `notes`."""
    try:
        text = read_text(path, errors="replace")
        check_count(text, repr(path.name))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
        return []
    except (OSError, UnsmoothError) as error:
        notes.append(f"{path.name} cannot be read ({getattr(error, 'strerror', None) or error}).")
        return []
    written = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    found, broken = [], []
    for number, line in written:
        content = _object(line)
        if content is None:
            broken.append(number)
        else:
            found.append(content)
    if broken and broken[-1] == written[-1][0] and not text.endswith("\n"):
        notes.append(f"The last line of {path.name} is cut off; it was read up to there.")
        broken.pop()
    if broken:
        told = ", ".join(map(str, broken[:5])) + (" and others" if len(broken) > 5 else "")
        notes.append(f"{path.name} has lines that are no JSON object, which were left out: {told}.")
    return found


def by_step(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Lines in the order of their steps; of those that a resumed run wrote again, the later one.

    >>> by_step([{"step": 2, "loss": 1.0}, {"step": 1}, {"step": 2, "loss": 0.5}, {"loss": 3.0}])
    ({'step': 1}, {'step': 2, 'loss': 0.5})
    """
    kept = {line["step"]: line for line in lines if _is_step(line.get("step"))}
    return tuple(kept[step] for step in sorted(kept))


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _object(line: str) -> Line | None:
    try:
        content = parse_json(line, "a line", constants=True)
    except UnsmoothError:
        return None
    return content if isinstance(content, dict) else None


FORMAT = 1


class RunFolder:
    """Files of one run; docs/training/guide.md says what each holds.

    Args:
        path: The folder.
        name: What to call the run; the folder's name where None.
    """

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = self.path.name if name is None else name

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        """Where the trained model is: what `unsmooth.load` takes."""
        return self.path / "final"

    @property
    def average(self) -> Path:
        """Where the moving average of its weights is, if it has one."""
        return self.path / "final-average"

    @property
    def begun(self) -> bool:
        """Whether its settings are there."""
        return (self.path / "config.json").exists()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, and the trained model is there."""
        return self.manifest().get("state") == "finished" and self.final.is_dir()

    def create(self, config: Config) -> None:
        """Write the settings, before anything else is done: from here on the run can be resumed."""
        if self.begun:
            raise expected(
                "a new folder for the run", f"one that holds a run ({self.path})", "--resume, or another --out"
            )
        check_writable(self.path)
        write_whole(self.path / "config.json", json.dumps({"format": FORMAT, **to_plain(config)}, indent=1) + "\n")

    def forget_unbegun(self) -> None:
        """Take the settings away again where the run could not even be built, so that it may be started anew."""
        if self.manifest():
            return
        for name in ("config.json", ".lock", NOTE):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def config(self) -> Config:
        """The settings that the run was started with."""
        path = self.path / "config.json"
        try:
            plain = read_json(path, constants=True)
        except FileNotFoundError:
            raise expected("the folder of a run", f"{self.path}, without config.json", "the --out of a run") from None
        if (found := plain.pop("format", None)) != FORMAT:
            hint = "the version of unsmooth that wrote it"
            raise expected(f"a run of format {FORMAT}", f"format {found} in {path}", hint)
        try:
            return from_plain(Config, plain)
        except UnsmoothError as error:
            raise UnsmoothError(f"In {path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
            raise expected(f"settings in {path}", f"a broken file ({error})", "starting the run anew") from None

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """What the run is and how far it came."""
        write_whole(self.path / "manifest.json", json.dumps(finite({"format": FORMAT, **manifest}), indent=1) + "\n")

    def manifest(self) -> dict[str, Any]:
        """As written last; empty where the run never got so far."""
        try:
            return read_json(self.path / "manifest.json")
        except (OSError, UnsmoothError):
            return {}

    def sweep(self) -> None:
        """Remove what a killed run had begun to write and not put in its place."""
        for folder in (self.path, self.checkpoints, self.path / "scans", *self.path.glob("scans/step-*")):
            for path in folder.glob(".*"):
                if DRAFT.fullmatch(path.name):
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def held(self) -> AbstractContextManager[None]:
        """Nobody else carries this run out meanwhile."""
        return held(self.path, f"a run in {self.path} that nobody is carrying out")


class Lines:
    """A file of one JSON object a line that can be cut back to a step, so that a resumed run writes no line twice."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, **fields: Any) -> None:
        """Append a line."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite(fields)) + "\n")
        except OSError as error:
            hint = "freeing space, then `unsmooth train --resume` or the arena's command again"
            raise expected(f"room for a line in {self.path}", error.strerror or type(error).__name__, hint) from None

    def read(self) -> list[dict[str, Any]]:
        """All whole lines."""
        return [line for line in read_lines(self.path, []) if isinstance(line.get("step"), int)]

    def sync(self) -> None:
        """Have the disk hold what was written so far, so that no checkpoint is ahead of it."""
        if self.path.exists():
            sync_file(self.path)

    def cut(self, step: int) -> None:
        """Forget what was written after `step`, and a last line that was not finished."""
        if self.path.exists():
            kept = [line for line in self.read() if line["step"] <= step]
            write_whole(self.path, "".join(json.dumps(line) + "\n" for line in kept))


class Events:
    """TensorBoard's event files, where tensorboard is installed; otherwise nothing is written.

    Args:
        folder: Where they go.
        after: Step from which on earlier events of this folder are void, because the run was taken up there.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._writer = None
        else:
            self._writer = SummaryWriter(str(folder), purge_step=after + 1 if after else None)

    def add(self, step: int, **values: float) -> None:
        """Numbers of one step, by name."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still held back."""
        if self._writer is not None:
            self._writer.close()


class Watchmaker:
    """Seconds that the run has taken, those before a resume included."""

    def __init__(self, before: float = 0.0) -> None:
        self._start = time.monotonic() - before

    @property
    def seconds(self) -> float:
        """Until now."""
        return time.monotonic() - self._start
