"""A folder that one process works in at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unsmooth.errors import UnsmoothError, expected


class HeldError(UnsmoothError):
    """Another process works there."""


@contextmanager
def held(folder: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Keep others out of `folder` meanwhile; the system lets go when the process ends, however it ends.

    Args:
        folder: There already.
        what: What was expected of it, for the error.
        wait: Until whoever is there has left, instead of an error.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / ".lock").open("a") as file:
        try:
            # Not flock, which processes that load data would inherit and hold on to.
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise HeldError(str(expected(what, "one under way", "waiting for it, or another --out"))) from None
        except OSError:
            pass  # a disk that knows no locks
        yield
