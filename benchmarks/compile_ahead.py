"""Models compiled by many processes at once into Inductor's cache on disk, from where one process then has them.

Compiling a model keeps one core busy for half a minute, timing it wants a GPU to itself: so first everything is
compiled, side by side, and then one process measures and only traces.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch._functorch.config
import torch._inductor.config
from torch._dynamo.utils import counters

T = TypeVar("T")
# Processes that each take several cores keep one another from them.
ONE_CORE = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
# One that was killed says nothing: how long to wait for any to be done.
PATIENCE_SECONDS = 300.0
# Autocast inside a model. All that it is told is in the graph and so in the key, but torch has it on no list.
_AUTOCAST = ("torch.amp.autocast_mode._enter_autocast", "torch.amp.autocast_mode._exit_autocast")
_INDUCTOR = {
    "fx_graph_cache": True,
    "unsafe_marked_cacheable_functions": dict.fromkeys(_AUTOCAST, "as the graph says"),
}
# Of functions with a gradient of their own, both are in the graph too.
_FUNCTORCH = {"enable_autograd_cache": True, "autograd_cache_allow_custom_autograd_functions": True}


def share_cache(folder: Path) -> None:
    """What this process compiles goes there and comes from there."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.resolve())
    for config, settings in ((torch._inductor.config, _INDUCTOR), (torch._functorch.config, _FUNCTORCH)):
        for name, value in settings.items():
            if hasattr(config, name):  # an older torch has not all of them, and compiles some models twice
                setattr(config, name, value)


def cached() -> dict[str, int]:
    """How often the cache had what was asked for since the last time, and how often not."""
    found = {
        "hits": counters["aot_autograd"]["autograd_cache_hit"],
        "misses": counters["aot_autograd"]["autograd_cache_miss"],
        "bypassed": counters["aot_autograd"]["autograd_cache_bypass"],
    }
    counters.clear()
    return found


def compile_ahead(
    compile_one: Callable[[T], str], jobs: Sequence[T], folder: Path, workers: int, until: float
) -> Iterator[str]:
    """What `compile_one` says of each job, in the order in which they are done; ends early where time is over.

    Args:
        compile_one: Of a module that processes can import.
        jobs: Those that take long should be first.
        folder: Of the cache.
        workers: How many processes.
        until: On the clock `time.monotonic`.
    """
    with _environment(ONE_CORE):
        context = multiprocessing.get_context("spawn")
        with context.Pool(min(workers, len(jobs)), _begin, (folder,)) as pool:
            said = pool.imap_unordered(compile_one, jobs)
            for _ in jobs:
                try:
                    yield said.next(min(PATIENCE_SECONDS, max(0.0, until - time.monotonic())))
                except multiprocessing.TimeoutError:
                    break
    forget_choices(folder)


def _begin(folder: Path) -> None:
    """Of a process that compiles.

    Some of what keys are made of is pickled as belonging to the first module in which torch is found. Here that is
    the program under its second name, where the one that is to find it has none; ``__main__`` it still is.
    """
    sys.modules.pop("__mp_main__", None)
    share_cache(folder)


def forget_choices(folder: Path) -> None:
    """Which variant of a kernel is fastest was tried on a GPU that others used: it is to be tried again."""
    for chosen in folder.rglob("*.best_config"):
        chosen.unlink(missing_ok=True)


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
