"""Taking runs to their end: which of them share a device, for how long, and what is said where memory runs out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from unsmooth.errors import expected
from unsmooth.models.randomise import private_randomness
from unsmooth.stopping import Deadline, asked_to_stop
from unsmooth.training.config import Config
from unsmooth.training.folder import RunFolder
from unsmooth.training.journal import Progress
from unsmooth.training.place import Place
from unsmooth.training.run import LossNotFiniteError, Run

Tell = Callable[[Progress], None]
AT_ONCE = 4
"""Runs that share a GPU at a time: more of them wait for each other rather than for the host."""


def side_by_side_on(device: str) -> int:
    """How many runs share a device, as settings name it, at a time."""
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return AT_ONCE if on_gpu else 1


def carry_out(runs: Sequence[tuple[Config, RunFolder]], place: Place, tell: Tell, deadline: Deadline) -> None:
    """Take runs to their end, or save them when the time is up; those whose turn does not come wait for a resume."""
    at_once = AT_ONCE if place.device.type == "cuda" and place.ranks == 1 else 1
    with ExitStack() as stack:
        for _, folder in runs if place.first else ():
            stack.enter_context(folder.held())
        for start in range(0, len(runs), at_once):
            if start == 0 or not place.anywhere(deadline.late):  # all processes have to ask
                _together(runs[start : start + at_once], place, tell, deadline)


def _together(runs: Sequence[tuple[Config, RunFolder]], place: Place, tell: Tell, deadline: Deadline) -> None:
    with surrounded(runs[0][0], place):
        side_by_side([Run(one, folder, place, tell) for one, folder in runs], deadline)


@contextmanager
def surrounded(config: Config, place: Place) -> Iterator[None]:
    """What a run is built and moved in."""
    with warnings.catch_warnings(), reproducible(config), memory_in_words(config, place):
        # Said of every sharded block; nothing here is written in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        # What draws from torch's generator after all draws the same, whatever was drawn before.
        with private_randomness(config.seed):
            yield


def side_by_side(runs: Sequence[Run], deadline: Deadline | None = None) -> None:
    """Move all runs on in turn until each is done, or paused because the time is up; on a GPU their steps overlap.

    Raises:
        KeyboardInterrupt: Somebody asked to stop; all were paused before.
        LossNotFiniteError: One of them lost its numbers; the others went on to their end, or their pause, before.
    """
    going, lost = list(runs), list[LossNotFiniteError]()
    with asked_to_stop(listening=all(run.place.ranks == 1 for run in runs)) as asked:
        while going:
            for run in list(going):
                try:
                    if not _moved(run, deadline or Deadline(), asked):
                        continue
                except LossNotFiniteError as error:
                    lost.append(error)
                going.remove(run)
        if asked():
            raise KeyboardInterrupt
    if lost:
        raise lost[0]


def _moved(run: Run, deadline: Deadline, asked: Callable[[], bool]) -> bool:
    """One step on; whether it was the last for now."""
    if not run.done:
        run.advance()  # at least once, however little time there is
    if run.done:
        run.finish()
        return True
    if run.may_pause and (asked() or run.place.anywhere(deadline.late)):
        run.pause()
        return True
    return False


@contextmanager
def reproducible(config: Config) -> Iterator[None]:
    """Where the run asks for it, only kernels that give the same bits every time."""
    before = torch.are_deterministic_algorithms_enabled()
    if config.engine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def memory_in_words(config: Config, place: Place) -> Iterator[None]:
    """Say what to lower where memory runs out."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _too_large(config, place) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise _too_large(config, place) from error


def _too_large(config: Config, place: Place) -> Exception:
    share = config.micro_batch or config.batch // place.ranks
    what = f"memory for {share} samples at a time on {place.device}"
    hints = [f"--set micro_batch={share // 2}, which adds up to the same batch"] if share > 1 else []
    hints += ["--set precision=bfloat16"] if config.engine.precision != "bfloat16" else []
    return expected(what, "too little", ", or ".join(hints or ["a smaller network"]))
