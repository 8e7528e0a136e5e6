"""A worker's side of a job: it saves when its driver says so or is gone, and ends where it has nothing to tell."""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import json
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsmooth import stopping
from unsmooth.stopping import Deadline

Tell = Callable[[Any], object]
Telling = Callable[[], AbstractContextManager[Tell]]
GO_ON, SAVE, STOP = "go on", "save", "stop"
# A worker looks so often at what its driver says, and saves where that has not changed for so long.
_LOOK, _GONE = 0.5, 60.0
_at_work, _asked = threading.Lock(), threading.Event()
_tells: dict[str, Tell] = {}


def silent() -> AbstractContextManager[Tell]:
    """Tells nobody."""
    return nullcontext(lambda _: None)


@dataclass(frozen=True)
class Said:
    """What came of a call: a value, or an error; `stopped` where somebody asked for it before its end."""

    value: Any = None
    error: Exception | None = None
    stopped: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Call:
    """A job as a worker is given it.

    Args:
        work: What is to be done.
        deadline: By when.
        patience: Seconds after which a worker that has nothing to tell ends itself.
        telling: Opens whom to tell; once in a process.
        cores: How many threads.
        note: What its driver says.
        token: Of the driver.
        word: Where to leave word of where each thread stood, should it stall.
        cwd: Where the driver is.
    """

    work: Callable[[Deadline, Tell], Any]
    deadline: Deadline
    patience: float
    telling: Telling
    cores: int
    note: Path
    token: str
    word: Path
    cwd: Path

    def __call__(self) -> Said:
        """Do it."""
        start = time.monotonic()
        _asked.clear()
        self._take_cores()
        with _at_work, _signals(), self._led(), contextlib.chdir(self.cwd), self._watched() as tell:
            try:
                return Said(self.work(self.deadline, tell), seconds=time.monotonic() - start)
            except KeyboardInterrupt:
                return Said(stopped=True)
            except Exception as error:
                return Said(error=_portable(error))

    def _take_cores(self) -> None:
        import torch

        torch.set_num_threads(self.cores)
        # Read when the compiler is first imported; by default each process has helpers for all cores, and after every
        # minute without compiling, which is how long runs take, stops them and starts others.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(self.cores))
        os.environ.setdefault("TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL", "0")

    @contextmanager
    def _watched(self) -> Iterator[Tell]:
        """Yields whom to tell. Where nothing is told for too long, this process ends, whatever holds it up."""
        if self.token not in _tells:
            _tells[self.token] = ExitStack().enter_context(self.telling())
        last = time.monotonic()
        with self.word.open("w", encoding="utf-8") as file:

            def go_on() -> None:
                faulthandler.dump_traceback_later(self.patience, exit=True, file=file)

            def tell(said: Any) -> None:
                nonlocal last
                if time.monotonic() - last > self.patience / 20:  # each time takes a thread
                    last = time.monotonic()
                    go_on()
                _tells[self.token](said)

            go_on()
            try:
                yield tell
            finally:
                faulthandler.cancel_dump_traceback_later()
        self.word.unlink(missing_ok=True)

    @contextmanager
    def _led(self) -> Iterator[None]:
        over = threading.Event()
        leash = threading.Thread(target=self._follow, args=(over,), name="leash", daemon=True)
        leash.start()
        try:
            yield
        finally:
            over.set()
            leash.join()

    def _follow(self, over: threading.Event) -> None:
        """Do as the driver says; where it says no more, save."""
        before, since = "", time.monotonic()
        while not over.wait(_LOOK):
            said = before
            with contextlib.suppress(OSError):
                said = self.note.read_text(encoding="utf-8") if self.note.exists() else ""
            if said != before or not said:
                before, since = said, time.monotonic()
            order = self._order(said)
            if order == STOP:
                os._exit(1)
            if order == SAVE or time.monotonic() - since > _GONE:
                _ask()

    def _order(self, said: str) -> str:
        try:
            found = json.loads(said)
            return str(found["order"]) if found["token"] == self.token else SAVE
        except (ValueError, LookupError, TypeError):  # nobody drives, or somebody else
            return SAVE


def _portable(error: Exception) -> Exception:
    """One that whoever gets it can unpickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return error


def _ask() -> None:
    """Have the main thread save; once, as a second time would stop it at once."""
    if not _asked.is_set():
        _asked.set()
        _thread.interrupt_main(signal.SIGTERM)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM saves. Ctrl-C in a terminal reaches all processes: whoever started them says when they are to stop."""
    logging.getLogger(stopping.__name__).setLevel(logging.ERROR)
    wanted: dict[signal.Signals, Any] = {signal.SIGTERM: signal.default_int_handler, signal.SIGINT: signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def end_with_parent() -> None:
    """Have this process end where its parent was killed, after saving: it would wait for a call for ever."""
    parent = multiprocessing.parent_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        if parent is not None:
            parent.join()
            _ask()
            with _at_work:
                os._exit(1)

    threading.Thread(target=wait, name="end_with_parent", daemon=True).start()
