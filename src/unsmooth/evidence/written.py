"""Results as JSON files that appear whole or not at all, with a format that is checked when they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.evidence.study import Trained
from unsmooth.files import finite, write_whole

FORMAT = 1


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Put plain data in its place; what is not finite becomes null."""
    return write_whole(path, json.dumps(finite({"format": FORMAT, **content}), ensure_ascii=False, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote; None where there is nothing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise broken_file(path) from None
    if not isinstance(content, dict):
        raise broken_file(path)
    if (form := content.pop("format", None)) != FORMAT:
        hint = "the version of unsmooth that wrote it"
        raise expected(f"results of format {FORMAT}", f"format {form} in {path}", hint)
    return content


def trained_from(run: Mapping[str, Any]) -> Trained:
    """A run that was written as plain data."""
    lists = {"evaluations": tuple(run["evaluations"]), "spectra": tuple(run["spectra"])}
    similarity = {metric: tuple(moments) for metric, moments in run["similarity"].items()}
    return Trained(**{**run, **lists, "similarity": similarity})


def broken_file(path: Path) -> UnsmoothError:
    """For results that cannot be read."""
    return expected(f"whole results in {path}", "a broken file", "removing it, and the same command again")
