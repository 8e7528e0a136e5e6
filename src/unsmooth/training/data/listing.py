"""What is in the data folder, and whether it still is what was put there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsmooth.training.data.cards import CARDS
from unsmooth.training.data.digests import file_digest
from unsmooth.training.data.get import FORMAT, RECORD


@dataclass(frozen=True)
class Listed:
    """A data set in the data folder.

    Args:
        name: Its folder.
        state: "whole", "absent", "broken", or "unchecked" where no record says what should be there.
        bytes: Size of its files.
        examples: What the record counts, by split.
        source: Where it came from.
        date: When it was put there.
        problem: What is wrong.
    """

    name: str
    state: str
    bytes: int = 0
    examples: Any = None
    source: str = ""
    date: str = ""
    problem: str = ""


def listed(out: Path = Path("data")) -> list[Listed]:
    """Every known data set, every file of it checked against the digest that was recorded."""
    return [_listed(out / name) for name in CARDS]


def _listed(folder: Path) -> Listed:
    if not folder.is_dir():
        return Listed(folder.name, "absent")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            return Listed(folder.name, "unchecked", size, problem=f"{RECORD} of another version")
        problem = next(filter(None, (_problem(folder, *each) for each in record["files"].items())), "")
        state = "broken" if problem else "whole"
        return Listed(folder.name, state, size, record["examples"], record["source"], record["date"], problem)
    except OSError:
        return Listed(folder.name, "unchecked", size, problem=f"no {RECORD}")
    except (ValueError, KeyError, TypeError, AttributeError):
        return Listed(folder.name, "broken", size, problem=f"{RECORD} is broken")


def _problem(folder: Path, name: str, wanted: dict[str, Any]) -> str:
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    if path.stat().st_size != wanted["bytes"]:
        return f"{name} has {path.stat().st_size} bytes instead of {wanted['bytes']}"
    return "" if file_digest(path) == wanted["sha256"] else f"{name} has another sha256"
