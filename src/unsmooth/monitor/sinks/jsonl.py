"""One JSON object a line in FOLDER/monitor.jsonl: what `unsmooth watch` reads, and the default."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from unsmooth.files import check_writable, finite
from unsmooth.monitor.reading import Reading
from unsmooth.monitor.sinks.sink import SINKS, Card, Sink

FILE = "monitor.jsonl"


class JSONLines(Sink):
    """Appends, and flushes every line: a run that is killed leaves what it has read."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def open(self, card: Card) -> str:
        """A line that says what follows; lines of an earlier run in the same folder stay in the file."""
        check_writable(card.folder)
        card.folder.mkdir(parents=True, exist_ok=True)
        self._path = card.folder / FILE
        self._add(kind="start", step=card.step, name=card.name, **card.about)
        return ""

    def write(self, reading: Reading) -> None:
        """A line."""
        self._add(kind="reading", **reading.line())

    def tell(self, step: int, kind: str, text: str) -> None:
        """A line."""
        self._add(kind=kind, step=step, text=text)

    def close(self, state: str) -> None:
        """A last line."""
        self._add(kind="end", state=state)

    def _add(self, **fields: Any) -> None:
        if self._path is None:
            return
        line = json.dumps(finite({"kind": fields.pop("kind"), "time": round(time.time(), 3), **fields}))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


SINKS.add("jsonl", JSONLines)
