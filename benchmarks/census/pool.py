"""Each architecture in a process of its own, forked from one that has everything imported, with limits."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# Seconds of processor time, seconds by the clock, bytes of address space.
SECONDS, PATIENCE, MEMORY = 25, 180, 6 << 30

# Where a result says how it went.
TOLD = ("verdict", "reason", "broke", "not built")

Result = dict[str, Any]
Task = Callable[[Callable[[Result], None]], Result]


def code_hash(*folders: Path) -> str:
    """Of all Python files in some folders."""
    whole = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            whole.update(str(file.relative_to(folder)).encode())
            whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def _write(file: Path, result: Result) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(result, ensure_ascii=False, default=str))
    partial.replace(file)


def _work(task: Task, file: Path, stamp: dict[str, Any], seconds: int) -> None:
    """In the child: run, write, end."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    started = time.perf_counter()

    def save(result: Result) -> None:
        _write(file, {**stamp, **result, "unfinished": True})

    def out_of_time(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s of processor time")

    signal.signal(signal.SIGXCPU, out_of_time)
    try:
        warnings.simplefilter("ignore")
        result = task(save)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error}".replace("\n", " ")[:400]
        known = json.loads(file.read_text()) if file.is_file() else {}
        known.pop("unfinished", None)
        result = {**known, "broke": f"{told} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"}
    _write(file, {**stamp, **result, "seconds": round(time.perf_counter() - started, 2)})


def run(
    tasks: Iterable[tuple[str, Task]],
    folder: Path,
    stamp: dict[str, Any],
    say: Callable[[str], None],
    again: str = "",
    seconds: int = SECONDS,
) -> None:
    """Do each task whose result is missing or of other code, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    gc.freeze()
    for name, task in tasks:
        file = folder / f"{name.replace('/', '__')}.json"
        if file.is_file():
            known = json.loads(file.read_text())
            is_known = all(known.get(key) == value for key, value in stamp.items()) and not known.get("unfinished")
            is_asked = again and any(again in str(known.get(key)) for key in TOLD)
            if is_known and not is_asked:
                continue
            file.unlink()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _work(task, file, {**stamp, "name": name}, seconds)
                code = 0
            finally:
                os._exit(code)
        _await(child)
        if file.is_file():
            result = json.loads(file.read_text())
        else:
            result = {**stamp, "name": name, "broke": "the process ended without a result (time or memory)"}
            _write(file, result)
        told = next((result[key] for key in ("verdict", "broke", "not built") if key in result), "")
        say(f"{name}: {told} {result.get('reason', '')[:160]}")


def _await(child: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, _ = os.waitpid(child, os.WNOHANG)
        if done:
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
