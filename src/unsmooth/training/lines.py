"""Files of one JSON object a line, as a run that may have been cut off leaves them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError
from unsmooth.files import check_count, parse_json, read_text

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
