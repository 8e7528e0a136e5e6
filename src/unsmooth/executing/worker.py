"""A worker's side of a job: it saves when its driver says so or is gone, and ends where it has nothing to tell."""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import json
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth import stopping
from unsmooth.executing.holding import NOTE
from unsmooth.stopping import Deadline

if TYPE_CHECKING:
    from unsmooth.executing.engines import Crew

Tell = Callable[[Any], object]
GO_ON, SAVE, STOP = "go on", "save", "stop"
# A worker looks so often at what its driver says, and saves where that has not changed for so long.
_LOOK, _GONE = 0.5, 60.0
_at_work, _asked = threading.Lock(), threading.Event()
_tells: dict[str, Tell] = {}


@dataclass(frozen=True)
class Said:
    """What came of a call: a value, or an error; `stopped` where somebody asked for it before its end."""

    value: Any = None
    error: Exception | None = None
    stopped: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Call:
    """A job on its way to a worker.

    Args:
        work: What is to be done.
        deadline: By when.
        crew: With what, and with how much patience.
        home: Folder of the driver.
        token: Of the driver.
        word: Where to leave word of where each thread stood, should it stall.
        cwd: Where the driver is.
    """

    work: Callable[[Deadline, Tell], Any]
    deadline: Deadline
    crew: Crew
    home: Path
    token: str
    word: Path
    cwd: Path

    def done(self, tell: Tell) -> Said:
        """Do it here."""
        start = time.monotonic()
        try:
            return Said(self.work(self.deadline, tell), seconds=time.monotonic() - start)
        except Exception as error:
            return Said(error=error)

    def __call__(self) -> Said:
        """Do it in a process of its own."""
        import torch

        torch.set_num_threads(self.crew.threads)
        # Read when the compiler is first imported; by default each process has helpers for all cores, and after every
        # minute without compiling, which is how long runs take, stops them and starts others.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(self.crew.threads))
        os.environ.setdefault("TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL", "0")
        if self.token not in _tells:
            _tells[self.token] = ExitStack().enter_context(self.crew.telling())
            threading.Thread(target=_follow, args=(self.home / NOTE, self.token), daemon=True).start()
        _asked.clear()
        try:
            with _at_work, _signals(), contextlib.chdir(self.cwd), self._watched() as tell:
                said = self.done(tell)
        except KeyboardInterrupt:
            return Said(stopped=True)
        try:
            pickle.loads(pickle.dumps(said.error))
        except Exception:  # of an error that asks for more than its words
            return replace(said, error=RuntimeError(f"{type(said.error).__name__}: {said.error}"))
        return said

    @contextmanager
    def _watched(self) -> Iterator[Tell]:
        """Yields whom to tell. Where nothing is told for too long, this process ends, whatever holds it up."""
        with self.word.open("w", encoding="utf-8") as file:

            def tell(said: Any) -> None:
                faulthandler.dump_traceback_later(self.crew.patience, exit=True, file=file)
                if said:  # else it is a sign of life
                    _tells[self.token](said)

            tell(None)
            try:
                yield tell
            finally:
                faulthandler.cancel_dump_traceback_later()
        self.word.unlink(missing_ok=True)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM saves; Ctrl-C is for whoever started this process."""
    logging.getLogger(stopping.__name__).setLevel(logging.ERROR)
    wanted: dict[signal.Signals, Any] = {signal.SIGTERM: signal.default_int_handler, signal.SIGINT: signal.SIG_IGN}
    with ExitStack() as stack:
        for number, handler in wanted.items():
            stack.callback(signal.signal, number, signal.signal(number, handler))
        yield


def _follow(note: Path, token: str) -> None:
    """Do as the driver says for the rest of this process; where it is gone, save."""
    parent, before, since = os.getppid(), "", time.monotonic()
    while True:
        time.sleep(_LOOK)
        said, order = before, SAVE  # where nobody drives, or somebody else
        with contextlib.suppress(OSError):
            said = note.read_text(encoding="utf-8") if note.exists() else ""
        with contextlib.suppress(ValueError):
            found = json.loads(said)
            order = found["order"] if found["token"] == token else SAVE
        since = since if said == before else time.monotonic()
        before = said
        if order == GO_ON and time.monotonic() - since < _GONE and os.getppid() == parent:
            continue
        if order == STOP or not _at_work.locked():
            os._exit(1)
        if not _asked.is_set():  # a second time would not wait until it has saved
            _asked.set()
            _thread.interrupt_main(signal.SIGTERM)
