"""Being asked to stop, by Ctrl-C or by whoever ends processes: runs are saved first."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
