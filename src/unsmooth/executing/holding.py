"""A folder that one process works in at a time, and who that is."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unsmooth.errors import UnsmoothError, expected
from unsmooth.files import read_json, write_whole

NOTE = ".held-by"


class HeldError(UnsmoothError):
    """Another process works there."""


@contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Keep others out of `folder` meanwhile; the system lets go when the process ends, however it ends.

    Args:
        folder: There already.
        what: What was expected of it, for the error.
    """
    lock, note = FileLock(folder / ".lock"), folder / NOTE
    with ExitStack() as stack:
        try:
            lock.acquire(timeout=0)
            stack.callback(lock.release)
        except Timeout:
            got = f"one under way, by {_holder(note)}"
            raise HeldError(str(expected(what, got, "waiting for it, or another --out"))) from None
        except (OSError, NotImplementedError):
            pass  # a disk that knows no locks
        write_note(folder)
        stack.callback(note.unlink, missing_ok=True)
        yield


def write_note(folder: Path, **more: Any) -> None:
    """Say beside the lock who holds it, as the lock itself does not."""
    about = {"process": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M}"}
    write_whole(folder / NOTE, json.dumps({**about, **more}))


def _holder(note: Path) -> str:
    try:
        found = read_json(note)
        return f"process {found['process']} on {found['host']} since {found['since']}"
    except (OSError, UnsmoothError, KeyError):
        return "a process that did not say which"
