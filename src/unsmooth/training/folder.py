"""The folder of a run: its settings, what it is, its log, and where everything else goes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unsmooth.errors import expected
from unsmooth.files import check_writable, finite, write_whole
from unsmooth.training.config import Config
from unsmooth.training.plain import from_plain, to_plain

FORMAT = 1


class RunFolder:
    """Files of one run; see docs/training.md for what each holds.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        """Where the trained model is: what `unsmooth.load` takes."""
        return self.path / "final"

    def create(self, config: Config) -> None:
        """Write the settings, before anything else is done: from here on the run can be resumed."""
        if (self.path / "config.json").exists():
            raise expected(
                "a new folder for the run", f"one that holds a run ({self.path})", "--resume, or another --out"
            )
        check_writable(self.path)
        write_whole(self.path / "config.json", json.dumps({"format": FORMAT, **to_plain(config)}, indent=1) + "\n")

    def config(self) -> Config:
        """The settings that the run was started with."""
        path = self.path / "config.json"
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise expected("the folder of a run", f"{self.path}, without config.json", "the --out of a run") from None
        except ValueError:
            raise expected(f"settings in {path}", "a broken file", "starting the run anew") from None
        if plain.pop("format", None) != FORMAT:
            raise expected(f"a run of format {FORMAT}", f"another in {path}", "the version of unsmooth that wrote it")
        return from_plain(Config, plain)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """What the run is and how far it came."""
        write_whole(self.path / "manifest.json", json.dumps(finite({"format": FORMAT, **manifest}), indent=1) + "\n")

    def manifest(self) -> dict[str, Any]:
        """As written last; empty where the run never got so far."""
        try:
            found: dict[str, Any] = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found


class Lines:
    """A file of one JSON object a line that can be cut back to a step, so that a resumed run writes no line twice."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, **fields: Any) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(fields)) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All whole lines."""
        if not self.path.exists():
            return []
        return [line for text in self.path.read_text(encoding="utf-8").splitlines() if (line := _parsed(text))]

    def cut(self, step: int) -> None:
        """Forget what was written after `step`, and a last line that was not finished."""
        if self.path.exists():
            kept = [line for line in self.read() if line["step"] <= step]
            write_whole(self.path, "".join(json.dumps(line) + "\n" for line in kept))


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and "step" in line else None


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
            self._writer = SummaryWriter(str(folder), purge_step=after + 1 if after else None)  # type: ignore[no-untyped-call]

    def add(self, step: int, **values: float) -> None:
        """Numbers of one step, by name."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Write what is still held back."""
        if self._writer is not None:
            self._writer.close()  # type: ignore[no-untyped-call]


class Watchmaker:
    """Seconds that the run has taken, those before a resume included."""

    def __init__(self, before: float = 0.0) -> None:
        self._start = time.monotonic() - before

    @property
    def seconds(self) -> float:
        """Until now."""
        return time.monotonic() - self._start
