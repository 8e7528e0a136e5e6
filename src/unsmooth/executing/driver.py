"""Handing jobs out: what is wanted next is asked for whenever one is done, and whoever dies is replaced."""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.executing.engines import Crew
from unsmooth.executing.holding import HeldError, held, write_note
from unsmooth.executing.worker import GO_ON, SAVE, STOP, Call, Tell
from unsmooth.stopping import Deadline

logger = logging.getLogger("unsmooth.executing")
_MOST_DEATHS = 3
_SECONDS_TO_SAVE = 120.0
# How often a driver shows that it is there.
_BEAT = 5.0
# How long it waits for a folder that the worker of one that was killed is about to leave.
_SECONDS_TO_LEAVE = 2.0


class DiedError(UnsmoothError):
    """Whoever was at a job was ended, time and again."""


@dataclass(frozen=True)
class Job:
    """A unit of work that takes up what it began before.

    Args:
        key: Its name: of several with one name one is handed out at a time, and none after that one was done.
        work: What is to be done, by a deadline, with somebody to tell. Where another process does it, it is pickled,
            and so is what it returns.
        then: What is to be done here with what it returned.
    """

    key: str
    work: Callable[[Deadline, Tell], Any]
    then: Callable[[Any], object]


def forecast(runs: int, seconds: float, crew: Crew, *, at_least: bool = False) -> str:
    """What is ahead, in words.

    Args:
        runs: How many.
        seconds: That they take together.
        crew: Who shares them.
        at_least: Whether there may be more.

    >>> forecast(40, 600.0, Crew()), forecast(40, 7200.0, Crew("local", 2), at_least=True)
    ('40 runs, about 10 min on this machine.', '40 runs or more, at least 1 h on this machine, by 2 processes.')
    """
    each = seconds / min(crew.processes, max(1, runs))
    number, unit = (each / 3600, "h") if each >= 3600 else (each / 60, "min") if each >= 60 else (each, "s")
    by = "" if crew.processes == 1 else f", by {crew.processes} processes"
    more, about = (" or more", "at least") if at_least else ("", "about")
    return f"{runs} {'run' if runs == 1 else 'runs'}{more}, {about} {number:.3g} {unit} on this machine{by}."


class Driver:
    """Hands jobs out for a folder, in which no other driver is meanwhile.

    Args:
        home: The folder; all workers see it.
        crew: Who does the jobs.
        deadline: After which nothing is begun, but for one job where nothing was; jobs are given it.
        tell: What a job that is done in this process tells of itself.

    Attributes:
        seconds: What all jobs took that were done so far, together.
    """

    def __init__(self, home: Path, crew: Crew, deadline: Deadline, tell: Tell = lambda _: None) -> None:
        if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
            raise expected("one process that hands runs out", f"{ranks} of torchrun", "--processes 2 without torchrun")
        self.home, self.crew, self.deadline, self.seconds = home.resolve(), crew, deadline, 0.0
        self._tell, self._going, self._deaths = tell, dict[Any, tuple[Job, Path]](), Counter[str]()
        self._open, self._token, self._calls, self._order = ExitStack(), secrets.token_hex(8), 0, GO_ON

    def __enter__(self) -> Driver:
        self.home.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(held(self.home, f"a folder that no other command fills ({self.home})"))
            if not self.crew.here:
                self._say(GO_ON)
                over = threading.Event()
                beating = threading.Thread(target=self._beat, args=(over,), name="beat", daemon=True)
                beating.start()
                stack.callback(beating.join)
                stack.callback(over.set)
            self._engine = self.crew.begin(self.home, self.deadline.left / 60, self._tell)
            stack.callback(lambda: self._engine.close(at_once=bool(self._going)))
            stack.callback(self._save)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def hand_out(self, wanted: Callable[[], Iterable[Job]], *, at_once: int | None = None) -> None:
        """Have everything done that is wanted, as far as time allows.

        Args:
            wanted: Jobs that can be begun by now, in order; asked again whenever one is done.
            at_once: So many at a time, where not as many as there are processes.

        Raises:
            DiedError: Whoever was at a job was ended, time and again; all others were done.
            Exception: What a job raised; the others save what they are at.
        """
        most, closed, lost, begun = at_once or self.crew.processes, set[str](), list[str](), False
        while True:
            for job in wanted():
                if len(self._going) >= most or self.deadline.nothing or (self.deadline.late and begun):
                    break
                if job.key not in closed and all(job.key != one.key for one, _ in self._going.values()):
                    self._begin(job)
                    begun = True
            if not self._going:
                break
            left = None if math.isinf(self.deadline.left) else self.deadline.left + _SECONDS_TO_SAVE
            for over in (done := self._engine.wait(list(self._going), left)):
                job, word = self._going.pop(over)
                if self._took(job, over, word):
                    closed.add(job.key)
                elif self._deaths[job.key] >= _MOST_DEATHS:
                    closed.add(job.key)
                    lost.append(job.key)
            if not done:  # in a queue somewhere, and too late
                break
        if lost:
            got = f"{_MOST_DEATHS} that were ended at {lost[0]}"
            hint = (
                "the same command, which keeps what is done; fewer --processes where memory is short; more --patience"
            )
            raise DiedError(str(expected("workers that come to their end", got, hint)))

    def _begin(self, job: Job) -> None:
        self._calls += 1
        word = self.home / f".stalled-{self._token}-{self._calls}"
        call = Call(job.work, self.deadline, self.crew, self.home, self._token, word, Path.cwd())
        self._going[self._engine.submit(call)] = job, word

    def _took(self, job: Job, over: Any, word: Path) -> bool:
        """Whether a job came to its end; otherwise it is to be handed out again."""
        try:
            said = self._engine.result(over)
        except Exception as error:  # no call raises any: whoever was at it is gone
            why = f"was ended ({type(error).__name__})"
            if word.exists() and word.stat().st_size:
                kept = self.home / f"stalled-{self._calls}.txt"
                shutil.move(word, kept)
                why = f"told nothing for {self.crew.patience / 60:g} minutes; where it stood is in {kept}"
            word.unlink(missing_ok=True)
        else:
            if said.error is None and not said.stopped:
                self.seconds += said.seconds
                job.then(said.value)
                return True
            if said.error is not None and (not isinstance(said.error, HeldError) or self._deaths[job.key]):
                raise said.error
            why = "was asked to stop" if said.stopped else "waits for another one to leave"
            time.sleep(_SECONDS_TO_LEAVE)
        self._deaths[job.key] += 1
        logger.warning("%s is begun anew: its worker %s", job.key, why)
        return False

    def _save(self) -> None:
        """Have those that are still at work save what they are at; who asks a second time does not wait for it."""
        if not self._going:
            return
        logger.warning("workers save what they are at (%d); once more stops them at once", len(self._going))
        try:
            self._say(SAVE)
            end = Deadline(_SECONDS_TO_SAVE)
            while self._going and not end.late:
                for over in self._engine.wait(list(self._going), end.left):
                    del self._going[over]
        finally:
            self._say(STOP)

    def _say(self, order: str) -> None:
        self._order = order
        write_note(self.home, token=self._token, order=order, beat=time.time())

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(_BEAT):
            self._say(self._order)
