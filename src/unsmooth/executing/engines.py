"""Who does the jobs: this process, processes of this machine, a Ray cluster, or SLURM through submitit."""

from __future__ import annotations

import concurrent.futures
import logging
import math
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from unsmooth.errors import expected, unknown_name
from unsmooth.executing.worker import Call, Said, Tell
from unsmooth.extras import import_extra

ENGINES = ("here", "local", "ray", "slurm", "submitit")
"""`submitit` is what `slurm` is, on this machine without SLURM: to try it out."""
_DAY = 24 * 60


def silent() -> AbstractContextManager[Tell]:
    """Tells nobody."""
    return nullcontext(lambda _: None)


@dataclass(frozen=True)
class Crew:
    """Who does the jobs of a command, and with what each of them.

    Args:
        engine: One of `ENGINES`.
        processes: Jobs at a time.
        cores: For each job; None shares those of this machine among the processes.
        gpus: For each job, where the engine hands GPUs out; less than 1 shares one. None shares those of this machine.
        patience: Seconds in which a worker may have nothing to tell; then it ends, and another one takes its job up.
        telling: Opens whom workers tell how far they are. It is called where they are, so it can be pickled.
    """

    engine: str = "here"
    processes: int = 1
    cores: float | None = None
    gpus: float | None = None
    patience: float = 600.0
    telling: Callable[[], AbstractContextManager[Tell]] = silent

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise unknown_name("engine", self.engine, ENGINES)
        if self.processes < 1 or (self.engine == "here" and self.processes > 1):
            hint = "--engine local" if self.processes > 1 else "--processes 4"
            raise expected("--processes of 1 or more", self.processes, hint)
        if not 0 < self.patience < math.inf:
            raise expected("--patience above 0 and finite", self.patience / 60, "--patience 10")
        for option, value in (("--cores", self.cores), ("--gpus", self.gpus)):
            if value is not None and not 0 <= value < math.inf:
                raise expected(f"{option} of 0 or more", value, f"{option} 1")
        if self.engine == "ray":
            import_extra("ray", purpose="for --engine ray", extra="ray")
        if self.engine in ("slurm", "submitit"):
            import_extra("submitit", purpose=f"for --engine {self.engine}", extra="slurm")
        if self.engine == "slurm" and shutil.which("sbatch") is None:
            raise expected("SLURM for --engine slurm", "no command sbatch", "--engine local")

    @classmethod
    def chosen(cls, engine: str | None, processes: int, **more: Any) -> Crew:
        """As options name it: without an engine it is this process, or several of this machine."""
        return cls(engine or ("local" if processes > 1 else "here"), processes, **more)

    @property
    def here(self) -> bool:
        """Whether it is this process alone."""
        return self.engine == "here"

    @property
    def threads(self) -> int:
        """Of each job: its cores."""
        return max(1, math.ceil(self.cores or (os.cpu_count() or 1) // self.processes))

    @property
    def gpus_of_each(self) -> float:
        """0 where there are none."""
        import torch

        each = torch.cuda.device_count() / self.processes if self.gpus is None else self.gpus
        return each if each < 1 else float(int(each))

    def begin(self, folder: Path, minutes: float, tell: Tell) -> Engine:
        """Start the engine: `submit` begins a call, `wait` returns those that are over, `result` what came of one.

        Of a call whose worker is gone `result` raises an `Exception`; what goes wrong with the call is part of it.

        Args:
            folder: Which all machines see, for what the engine itself keeps.
            minutes: How long a worker may be needed.
            tell: What a call tells that is done in this process.
        """
        if self.engine in ("here", "local"):
            return _Here(tell) if self.here else _Local()
        return _Ray(self) if self.engine == "ray" else _Slurm(self, folder, minutes)


class _Here:
    """This process: a call is over when it was submitted."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def submit(self, call: Call) -> Future[Said]:
        future = Future[Said]()
        future.set_result(call.done(self._tell))
        return future

    def wait(self, begun: Sequence[Any], seconds: float | None) -> Sequence[Any]:
        return begun

    def result(self, one: Future[Said]) -> Said:
        return one.result()

    def close(self, at_once: bool) -> None:
        return


class _Local:
    """Processes of this machine, each a pool of its own: one that dies takes no other with it."""

    def __init__(self) -> None:
        self._idle, self._busy = list[ProcessPoolExecutor](), dict[Future[Said], ProcessPoolExecutor]()

    def submit(self, call: Call) -> Future[Said]:
        if not self._idle:
            # Ctrl-C in a terminal reaches all processes: whoever started them says when they are to stop.
            spawn, deaf = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
            self._idle.append(ProcessPoolExecutor(1, spawn, initializer=signal.signal, initargs=deaf))
        pool = self._idle.pop()
        future = pool.submit(call)
        self._busy[future] = pool
        return future

    def wait(self, begun: Sequence[Future[Said]], seconds: float | None) -> Sequence[Future[Said]]:
        return list(concurrent.futures.wait(begun, seconds, concurrent.futures.FIRST_COMPLETED).done)

    def result(self, one: Future[Said]) -> Said:
        pool = self._busy.pop(one)
        if one.exception() is None:
            self._idle.append(pool)
        return one.result()

    def close(self, at_once: bool) -> None:
        for pool in (*self._idle, *self._busy.values()):
            for process in list((pool._processes or {}).values()) if at_once else ():
                process.kill()
            pool.shutdown(cancel_futures=True)


class _Ray:
    """A Ray cluster: the one that RAY_ADDRESS names, else this machine."""

    def __init__(self, crew: Crew) -> None:
        import ray

        self._ray, self._own = ray, not ray.is_initialized()
        if self._own:
            handled = signal.getsignal(signal.SIGTERM)
            room: dict[str, Any] = {"num_cpus": math.ceil(crew.processes * (crew.cores or crew.threads))}
            options = {"address": "auto"} if os.environ.get("RAY_ADDRESS") else {**room, "include_dashboard": False}
            ray.init(**options, logging_level=logging.ERROR)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handled)  # Ray's own would leave without saving
        task = ray.remote(max_retries=0, num_cpus=crew.cores or crew.threads, num_gpus=crew.gpus_of_each)
        self._task = task(_done_by_ray)

    def submit(self, call: Call) -> Any:
        return self._task.remote(call)

    def wait(self, begun: Sequence[Any], seconds: float | None) -> Sequence[Any]:
        return list(self._ray.wait(list(begun), timeout=seconds)[0])

    def result(self, one: Any) -> Said:
        return cast(Said, self._ray.get(one))

    def close(self, at_once: bool) -> None:
        if self._own:
            self._ray.shutdown()


def _done_by_ray(call: Call) -> Said:
    return call()


class _Slurm:
    """SLURM through submitit, one allocation for each job; partition and account are SBATCH_PARTITION, SBATCH_ACCOUNT.

    Args:
        crew: What each job is given.
        folder: For submitit's files.
        minutes: How long a worker may be needed.
    """

    _LOOKS = 0.1

    def __init__(self, crew: Crew, folder: Path, minutes: float) -> None:
        import submitit

        cluster = "slurm" if crew.engine == "slurm" else "local"
        self._executor = submitit.AutoExecutor(folder=folder / ".submitit", cluster=cluster)
        self._executor.update_parameters(
            name="unsmooth",
            timeout_min=math.ceil(min(minutes, _DAY)) + 2,  # to save in
            cpus_per_task=crew.threads,
            gpus_per_node=math.ceil(crew.gpus_of_each),
        )

    def submit(self, call: Call) -> Any:
        return self._executor.submit(call)

    def wait(self, begun: Sequence[Any], seconds: float | None) -> Sequence[Any]:
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not (over := [job for job in begun if job.done()]) and time.monotonic() < end:
            time.sleep(self._LOOKS)
        return over

    def result(self, one: Any) -> Said:
        return cast(Said, one.result())

    def close(self, at_once: bool) -> None:
        return


Engine = _Here | _Local | _Ray | _Slurm
