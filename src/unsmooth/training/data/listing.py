"""What is in the data folder, and whether it still is what was put there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError
from unsmooth.files import below, read_json
from unsmooth.schema import parse
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


@dataclass(frozen=True)
class _File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Record:
    files: dict[str, _File]
    examples: dict[str, Any]
    source: str
    date: str


_NAMES = ("files", "examples", "source", "date")


def listed(out: Path = Path("data")) -> list[Listed]:
    """Every known data set, every file of it checked against the digest that was recorded."""
    return [_listed(out / name) for name in CARDS]


def _listed(folder: Path) -> Listed:
    if not folder.is_dir():
        return Listed(folder.name, "absent")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        record = read_json(folder / RECORD)
        if record.get("format") != FORMAT:
            return Listed(folder.name, "unchecked", size, problem=f"{RECORD} of another version")
        said = parse(_Record, {name: record.get(name) for name in _NAMES}, where=RECORD)
        problem = next(filter(None, (_problem(folder, *each) for each in said.files.items())), "")
        state = "broken" if problem else "whole"
        return Listed(folder.name, state, size, said.examples, said.source, said.date, problem)
    except FileNotFoundError:
        return Listed(folder.name, "unchecked", size, problem=f"no {RECORD}")
    except UnsmoothError:
        return Listed(folder.name, "broken", size, problem=f"{RECORD} is broken")


def _problem(folder: Path, name: str, wanted: _File) -> str:
    path = below(folder, name)
    if not path.is_file():
        return f"{name} is missing"
    if path.stat().st_size != wanted.bytes:
        return f"{name} has {path.stat().st_size} bytes instead of {wanted.bytes}"
    return "" if file_digest(path) == wanted.sha256 else f"{name} has another sha256"
