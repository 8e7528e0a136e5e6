"""A process that waits for something that never comes ends itself, and leaves word of where it stood.

Torch's compiler works through processes of its own, a GPU through its driver: now and then one of them never answers,
and whoever waits for it would wait until somebody looks. What tells such a process from one that trains, or compiles,
is that it has no use for the processor.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# How often it is looked whether anything was done, and how much of a processor counts as something.
_LOOKS, _LEAST = 20, 0.002
_WORD = "Timeout ("  # of faulthandler


@contextmanager
def ends_when_stalled(word: Path, seconds: float) -> Iterator[None]:
    """End this process where it uses no processor for so long, also where a thread keeps all others from running.

    Args:
        word: A file for where each thread stood; gone afterwards where all went well.
        seconds: So long.
    """
    over = threading.Event()
    with word.open("w", encoding="utf-8") as file:

        def go_on() -> None:
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)

        def look() -> None:
            used = _used_by_others()
            while not over.wait(seconds / _LOOKS):
                if (now := _used_by_others()) - used > _LEAST * seconds / _LOOKS:
                    go_on()
                used = now

        go_on()
        looking = threading.Thread(target=look, name="ends_when_stalled", daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
            faulthandler.cancel_dump_traceback_later()
    word.unlink()


def _used_by_others() -> float:
    """Seconds of the processor that this process has had, without those of this thread."""
    return time.process_time() - time.thread_time()


def has_stalled(word: Path) -> bool:
    """Whether a process that is gone ended itself so."""
    return word.exists() and word.read_text(encoding="utf-8", errors="replace").startswith(_WORD)
