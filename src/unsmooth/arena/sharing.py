"""Several processes in one arena: each takes what nobody else is at."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from unsmooth.arena.folder import ArenaFolder
from unsmooth.arena.plan import Plan
from unsmooth.arena.working import carry_out_arena, settle_models
from unsmooth.errors import UnsmoothError, expected
from unsmooth.training import Progress
from unsmooth.training.driving import Tell

Telling = Callable[[], AbstractContextManager[Tell]]


def share_out(
    plan: Plan, folder: ArenaFolder, processes: int, *, minutes: float | None, telling: Telling, call: str
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

    Raises:
        UnsmoothError: One of them could not go on; the others went on to their end.
    """
    if plan.budget is not None and plan.budget.seconds is not None:
        settle_models(plan, folder)
    context = multiprocessing.get_context("spawn")
    said: Any = context.SimpleQueue()
    wanted = [(plan, folder, number, processes, minutes, telling, call, said) for number in range(processes)]
    started = [context.Process(target=_work, args=one) for one in wanted]
    try:
        for process in started:
            process.start()
        for process in started:
            process.join()
    finally:
        for process in started:
            if process.is_alive():
                process.terminate()
    if not said.empty():
        raise UnsmoothError(said.get())
    if died := [process.exitcode for process in started if process.exitcode]:
        hint = "the same command, which keeps what is done; fewer --processes where memory is short"
        raise expected("processes that come to their end", f"one that was ended (exit code {died[0]})", hint)


def _work(
    plan: Plan,
    folder: ArenaFolder,
    number: int,
    processes: int,
    minutes: float | None,
    telling: Telling,
    call: str,
    said: Any,
) -> None:
    import torch

    threads = max(1, torch.get_num_threads() // processes)
    torch.set_num_threads(threads)
    # Read when the compiler is first imported; by default each process has helpers for all cores.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    parent = os.getppid()
    try:
        with telling() as tell:

            def told(progress: Progress) -> None:
                if os.getppid() != parent:
                    raise KeyboardInterrupt  # whoever started this is gone
                tell(progress)

            carry_out_arena(plan, folder, minutes=minutes, tell=told, call=call, worker=number, workers=processes)
    except KeyboardInterrupt:
        pass  # whoever started this says so
    except Exception as error:
        words = " ".join(str(error).split())
        said.put(words if isinstance(error, UnsmoothError) else f"{type(error).__name__}: {words}")
