"""Files that appear whole or not at all, and what goes into them."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, expected


def write_whole(path: Path, content: bytes | str) -> Path:
    """Write beside `path` and move into place: a reader sees the old file or the new one, never half of it."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    # Not tempfile: its files are private to the user, and results are for sharing.
    draft = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(data)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _not_writable(f"a place to write {path.name!r}", path.parent, error) from None
    return path


def check_writable(folder: Path) -> None:
    """Create `folder` and try to write there, before any work is done for it."""
    probe = folder / f".{secrets.token_hex(8)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_writable("a writable folder", folder, error) from None


def finite(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _not_writable(what: str, folder: Path, error: OSError) -> UnsmoothError:
    return expected(what, f"{error.strerror or type(error).__name__}: {folder}", "another folder")
