"""Several processes in one arena: each takes what nobody else is at."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from unsmooth import stopping
from unsmooth.arena.folder import ArenaFolder
from unsmooth.arena.plan import Plan
from unsmooth.arena.refusing import OtherResultsError
from unsmooth.arena.stalling import ends_when_stalled, has_stalled
from unsmooth.arena.working import carry_out_arena, check_results, settle_models
from unsmooth.errors import UnsmoothError, expected
from unsmooth.training import Progress
from unsmooth.training.driving import Tell

logger = logging.getLogger("unsmooth.arena")
Telling = Callable[[], AbstractContextManager[Tell]]
# So often another takes the place of a process that stalled.
_MOST_STALLS = 3
_SECONDS_TO_SAVE = 120.0


def share_out(
    plan: Plan,
    folder: ArenaFolder,
    processes: int,
    *,
    minutes: float | None,
    telling: Telling,
    call: str,
    patience: float = 10.0,
) -> None:
    """Carry an arena out in so many processes of this machine, which share its device.

    Compiling and starting a run keep a processor busy and a GPU idle: with several processes one's steps fill the
    other's pauses. Within each, runs of one entrant go side by side.

    Args:
        plan: What is wanted.
        folder: Where everything goes.
        processes: How many.
        minutes: For each of them.
        telling: Opens what `Progress` is told to; called in every process, so it has to be one that can be pickled.
        call: Names this call.
        patience: After so many minutes without any work another takes the place of a process.

    Raises:
        UnsmoothError: One of them could not go on; the others went on to their end.
    """
    check_results(plan, folder)
    if plan.budget is not None and plan.budget.seconds is not None:
        settle_models(plan, folder)
    context = multiprocessing.get_context("spawn")
    said: Any = context.SimpleQueue()
    end = None if minutes is None else time.monotonic() + 60.0 * minutes
    crew: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="unsmooth-") as words:
        try:
            for number in range(processes):
                word = Path(words) / f"stalled-{number}.txt"
                share = _Share(plan, folder, number, processes, end, telling, call, 60.0 * patience, word)
                crew.append(_Worker(share, context, said))
            _see_to_their_end(crew)
        finally:
            _stop(crew)
    if not said.empty():
        kind, words = said.get()
        raise kind(words)
    if died := [worker.process.exitcode for worker in crew if worker.process.exitcode]:
        hint = "the same command, which keeps what is done; fewer --processes where memory is short"
        raise expected("processes that come to their end", f"one that was ended (exit code {died[0]})", hint)


@dataclass(frozen=True)
class _Share:
    """What a process is given; `word` is a file for where it stood, should it stall."""

    plan: Plan
    folder: ArenaFolder
    number: int
    processes: int
    end: float | None
    telling: Telling
    call: str
    patience: float
    word: Path

    @property
    def minutes(self) -> float | None:
        """Until the time is up."""
        return None if self.end is None else max(0.0, (self.end - time.monotonic()) / 60)


@dataclass
class _Worker:
    """A process, and those that took its place."""

    share: _Share
    context: Any
    said: Any
    stalls: int = 0
    process: Any = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """In a new process."""
        self.process = self.context.Process(target=_work, args=(self.share, self.said))
        self.process.start()

    def begins_again(self) -> bool:
        """Where it stalled: what it was at is free again, and goes on from there."""
        self.process.join()
        if self.stalls == _MOST_STALLS or not has_stalled(self.share.word):
            return False
        self.stalls += 1
        kept = self.share.folder.runs / f"stalled-{self.share.number}-{self.stalls}.txt"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self.share.word, kept)
        said = "process %d did nothing for %g minutes and was begun anew; where it stood is in %s"
        logger.warning(said, self.share.number, self.share.patience / 60, kept)
        self.begin()
        return True


def _see_to_their_end(crew: Sequence[_Worker]) -> None:
    running: dict[Any, _Worker] = {worker.process.sentinel: worker for worker in crew}
    while running:
        for sentinel in wait(list(running)):
            worker = running.pop(sentinel)
            if worker.begins_again():
                running[worker.process.sentinel] = worker


def _stop(crew: Sequence[_Worker]) -> None:
    """Have those that are still at work save what they are at; who asks a second time does not wait for it."""
    running = [worker.process for worker in crew if worker.process.is_alive()]
    if running:
        logger.warning("processes save what they are at (%d); once more stops them at once", len(running))
    try:
        for process in running:
            process.terminate()
        end = time.monotonic() + _SECONDS_TO_SAVE
        for process in running:
            process.join(max(0.0, end - time.monotonic()))
    finally:
        for process in running:
            process.kill()


def _work(share: _Share, said: Any) -> None:
    import torch

    # Ctrl-C in a terminal reaches all processes at once: whoever started this one says when it is to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger(stopping.__name__).setLevel(logging.ERROR)

    threads = max(1, torch.get_num_threads() // share.processes)
    torch.set_num_threads(threads)
    # Read when the compiler is first imported; by default each process has helpers for all cores, and after every
    # minute without compiling, which is how long runs take, stops them and starts others.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    os.environ.setdefault("TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL", "0")
    parent = os.getppid()
    try:
        with ends_when_stalled(share.word, share.patience), share.telling() as tell:

            def told(progress: Progress) -> None:
                if os.getppid() != parent:
                    raise KeyboardInterrupt  # whoever started this is gone
                tell(progress)

            carry_out_arena(
                share.plan,
                share.folder,
                minutes=share.minutes,
                tell=told,
                call=share.call,
                worker=share.number,
                workers=share.processes,
            )
    except KeyboardInterrupt:
        pass  # whoever started this says so
    except Exception as error:
        words = " ".join(str(error).split())
        kind = OtherResultsError if isinstance(error, OtherResultsError) else UnsmoothError
        said.put((kind, words if isinstance(error, UnsmoothError) else f"{type(error).__name__}: {words}"))
