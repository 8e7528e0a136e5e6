"""Results as JSON files that appear whole or not at all, with a format that is checked when they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from unsmooth.errors import expected
from unsmooth.files import finite, read_json, write_whole
from unsmooth.schema import parse

FORMAT = 1
T = TypeVar("T")


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Put plain data in its place; what is not finite becomes null."""
    return write_whole(path, json.dumps(finite({"format": FORMAT, **content}), ensure_ascii=False, indent=1) + "\n")


@overload
def read_results(path: Path) -> dict[str, Any] | None: ...
@overload
def read_results(path: Path, kind: type[T]) -> T | None: ...
def read_results(path: Path, kind: Any = dict) -> Any:
    """What `write_json` wrote, as `kind`; None where there is nothing."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        return None
    if (form := content.pop("format", None)) != FORMAT:
        hint = "the version of unsmooth that wrote it"
        raise expected(f"results of format {FORMAT}", f"format {str(form)[:80]} in {path}", hint)
    return parse(kind, content, where=repr(str(path)))
