"""Being asked to stop, by Ctrl-C, by whoever ends processes, or because the time is up: runs are saved first."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from unsmooth.errors import expected

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TIME, _SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([smh])"), {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_in(text: str) -> float | None:
    """A time such as "90s", "5m" or "1.5h"; None for anything else.

    >>> seconds_in("1.5h"), seconds_in("90 s"), seconds_in("90")
    (5400.0, 90.0, None)
    """
    found = _TIME.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else math.inf
    return seconds if seconds < math.inf else None


class Deadline:
    """When everything is to be done or saved. In another process it is as far away as when it was sent there.

    Args:
        seconds: From now; None for never, 0 for beginning nothing.

    >>> Deadline().late, Deadline(3600.0).allows(60.0), Deadline(3600.0).allows(7200.0), Deadline(0.0).late
    (False, True, False, True)
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.nothing = seconds == 0
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @classmethod
    def read(cls, text: str | None) -> Deadline:
        """What was given as ``--total-budget``; None for never."""
        seconds = None if text is None else seconds_in(text)
        if text is not None and seconds is None:
            raise expected("a time for all runs together", repr(text), "--total-budget 2h, 90m or 30s")
        return cls(seconds)

    @classmethod
    def in_minutes(cls, minutes: float | None) -> Deadline:
        """So many; None for never."""
        return cls(None if minutes is None else 60.0 * minutes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Deadline, (None if self.left == math.inf else self.left,)

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.0, self._end - time.monotonic())

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return self.left == 0

    def allows(self, seconds: float) -> bool:
        """Whether what takes so long would be done by then."""
        return seconds <= self.left


@contextmanager
def asked_to_stop(listening: bool = True) -> Iterator[Callable[[], bool]]:
    """Whether somebody asked, while a step is made to its end; who asks again does not wait.

    Args:
        listening: Whether to; one of several processes does not, as the others would wait for it.

    >>> with asked_to_stop() as asked:
    ...     asked()
    False
    """
    came = list[int]()

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        logger.warning("stopping where the log has its next line, to save; once more stops at once")

    with _handled_by(note, [number for number in SIGNALS if listening and _is_free(number)]):
        yield lambda: bool(came)


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """SIGTERM, by which batch systems end a command, is taken for Ctrl-C: what is told and saved then is so here too.

    Not in one of several processes of torchrun, which may be waiting for another one that is gone, and hears nothing.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    with _handled_by(signal.default_int_handler, [signal.SIGTERM] if alone and _is_free(signal.SIGTERM) else []):
        yield


def _is_free(number: int) -> bool:
    """Whether a signal may be handled here: in the main thread, where Python allows it, if nobody else handles it."""
    here = threading.current_thread() is threading.main_thread()
    return here and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], Any], numbers: list[signal.Signals]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)
