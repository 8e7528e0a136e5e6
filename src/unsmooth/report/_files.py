"""Optional packages, and files that appear whole or not at all."""

from __future__ import annotations

import importlib
import os
import secrets
from pathlib import Path
from typing import Any

from unsmooth.errors import expected


def import_extra(name: str) -> Any:
    """Import a package of the `report` extra, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        wanted = f"the package {name}, which draws the charts,"
        raise expected(wanted, f"an environment without it ({error})", 'pip install "unsmooth[report]"') from None


def write_whole(path: Path, content: bytes) -> Path:
    """Write `content` beside `path` and move it into place, so that a reader never meets half a file."""
    # Not tempfile: its files are private to the user, and reports are for sharing.
    draft = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(content)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise expected(f"a place to write {path.name!r}", f"{reason}: {path}", "another folder") from error
    return path
