"""An arena through every engine, with a worker killed in the middle: what comes out is what comes out in place."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from tests.arena.tiny_arenas import plan, results, smallest
from tests.executing import jobs
from unsmooth.arena import ArenaFolder, Plan, carry_out_arena, standings
from unsmooth.executing import Crew, Driver, Job
from unsmooth.stopping import Deadline


@pytest.fixture(scope="module")
def wanted() -> Plan:
    """Two runs of which each takes a moment, and saves now and then."""
    base = smallest(steps=100, checkpoint_every=10.0, log_every=5)
    return plan(base=base, rates=(1e-3,), seeds=1)


@pytest.fixture(scope="module")
def in_place(wanted: Plan, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("in-place")
    carry_out_arena(wanted, ArenaFolder(path))
    return results(path)


def kill_one(runs: Path, killed: list[int], over: threading.Event) -> None:
    """The first worker that has saved anything."""
    while not killed and not over.is_set():
        for note in runs.glob("*/*/*/.held-by"):
            if any(note.parent.glob("checkpoints/step-*")):
                killed.append(json.loads(note.read_text())["process"])
                os.kill(killed[0], signal.SIGKILL)
                return
        time.sleep(0.005)


@pytest.mark.parametrize("engine", ["ray", "submitit"])
def test_who_dies_is_replaced(engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    done = list[str]()
    with Driver(tmp_path / "home", Crew(engine, 2, cores=1), Deadline()) as driver:
        driver.hand_out(lambda: [Job("ends", partial(jobs.end_once, tmp_path), done.append)])
    assert done == ["ends 2"]
    assert caplog.text.count("ends is begun anew: its worker was ended (") == 1


@pytest.mark.parametrize(
    "engine", ["local", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ray", "submitit"))]
)
def test_with_a_worker_killed_it_is_what_it_is_in_place(
    engine: str, wanted: Plan, in_place: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if engine != "local":
        pytest.importorskip(engine, reason=f"{engine} is not installed")
    folder, killed, over, heard = ArenaFolder(tmp_path), list[int](), threading.Event(), list[str]()
    killing = threading.Thread(target=kill_one, args=(folder.runs, killed, over))
    killing.start()
    try:
        carry_out_arena(wanted, folder, crew=Crew(engine, 2, cores=1), announce=heard.append)
    finally:
        over.set()
        killing.join()
    assert killed
    assert killed[0] != os.getpid()
    assert "is begun anew: its worker was ended (" in caplog.text
    assert results(tmp_path) == in_place
    assert all(line.done for line in standings(wanted, folder).lines)
    assert len(heard) == 1
    assert heard[0].startswith("2 runs, about ")
    assert heard[0].endswith(" on this machine, by 2 processes.")
