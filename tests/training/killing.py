"""Kills a run inside this process, at any of its touches of the disk, with nothing cleaned up after."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WATCHED = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")


class KilledError(BaseException):
    """What no `except Exception` holds up, like a signal."""


class _Killer:
    """An audit hook: Python tells it of every file that is opened, moved, made or removed. It cannot be taken out."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.left, self.touched, self.dead = 0, list[str](), False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or event not in _WATCHED or threading.current_thread() is not threading.main_thread():
            return
        path = str(arguments[1] if event == "os.rename" else arguments[0])
        # `config.json` is where a run begins to be one.
        if not path.startswith(self.folder) or (event == "open" and not _writes(arguments)):
            return
        self.touched.append(f"{event} {Path(path).name}")
        self.left -= 1
        self.dead = self.dead or self.left == 0
        if self.dead:  # and from now on: nobody tidies up after a signal
            raise KilledError(self.touched[-1])


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & 3)


_killer = _Killer()


@contextmanager
def killed_at(touch: int, folder: Path) -> Iterator[list[str]]:
    """Raise `KilledError` at the `touch`-th touch of `folder`; 0 only lists them. Yields what was touched."""
    if not hasattr(_killer, "installed"):
        sys.addaudithook(_killer)
        _killer.installed = True  # type: ignore[attr-defined]
    _killer.left, _killer.touched, _killer.dead = touch, [], False
    _killer.folder = str(folder)
    try:
        yield _killer.touched
    finally:
        _killer.folder = None
