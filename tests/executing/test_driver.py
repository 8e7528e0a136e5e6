"""Jobs, by whom ever: each is done once, those who die are replaced, and nobody else fills the folder meanwhile."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.executing import jobs
from unsmooth.errors import UnsmoothError
from unsmooth.executing import Crew, DiedError, Driver, HeldError, Job, held
from unsmooth.stopping import Deadline

LOCAL = Crew("local", 2)


def handed_out(home: Path, wanted: Sequence[Job], crew: Crew = LOCAL, deadline: Deadline | None = None) -> None:
    with Driver(home, crew, deadline or Deadline()) as driver:
        driver.hand_out(lambda: wanted)


def until(path: Path) -> str:
    """What is in a file, once there is anything."""
    end = time.monotonic() + 60
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.01)
    return path.read_text()


@pytest.mark.parametrize("crew", [Crew(), LOCAL], ids=["here", "local"])
def test_what_is_wanted_next_may_rest_on_what_is_done(crew: Crew, tmp_path: Path) -> None:
    done: list[str] = []

    def wanted() -> Iterator[Job]:
        for name in ("a", "b"):
            yield Job(name, partial(jobs.add, tmp_path, name), done.append)
        if len(done) == 2:
            yield Job("c", partial(jobs.add, tmp_path, "c"), done.append)

    with Driver(tmp_path / "home", crew, Deadline()) as driver:
        driver.hand_out(wanted)
        assert sorted(done) == ["a 1", "b 1", "c 1"]
        assert done[-1] == "c 1"
        driver.hand_out(lambda: [Job("a", partial(jobs.add, tmp_path, "a"), done.append)])
    assert done[-1] == "a 2"
    assert not list((tmp_path / "home").glob(".[hs]*"))


@pytest.mark.parametrize("crew", [Crew(), pytest.param(LOCAL, marks=pytest.mark.slow)], ids=["here", "local"])
def test_what_goes_wrong_in_a_job_is_raised(crew: Crew, tmp_path: Path) -> None:
    kind, told = (jobs.OddError, "1 and 2") if crew.here else (RuntimeError, "OddError: 1 and 2")
    with pytest.raises(kind, match=told):
        handed_out(tmp_path, [Job("fails", jobs.fail, print)], crew)


def test_without_time_nothing_is_begun_and_with_little_something(tmp_path: Path) -> None:
    wanted = [Job(name, partial(jobs.add, tmp_path, name), print) for name in ("a", "b")]
    handed_out(tmp_path / "home", wanted, Crew(), Deadline(0.0))
    assert not (tmp_path / "a").exists()
    handed_out(tmp_path / "home", wanted, Crew(), Deadline(1e-9))
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_a_deadline_travels_with_a_job(tmp_path: Path) -> None:
    done: list[str] = []
    work = partial(jobs.save_when_asked, tmp_path, "one")
    handed_out(tmp_path / "home", [Job("one", work, done.append)], Crew("local"), Deadline(2.0))
    assert done == ["one"]


def test_who_dies_is_replaced_and_given_up_at_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    wanted = [
        Job("ends", partial(jobs.end, tmp_path), print),
        *(Job(name, partial(jobs.add, tmp_path, name), done.append) for name in ("a", "b", "c")),
    ]
    with pytest.raises(DiedError, match=r"come to their end but got 3 that were ended at ends\. Try the same command"):
        handed_out(tmp_path / "home", wanted)
    assert (tmp_path / "ends").read_text() == "..."
    assert caplog.text.count("ends is begun anew: its worker was ended (BrokenProcessPool)") == 3
    assert sorted(done) == ["a 1", "b 1", "c 1"]  # whoever is beside one that dies is left alone


def test_another_takes_the_place_of_one_that_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "home"
    handed_out(home, [Job("stalls", partial(jobs.stall_twice, tmp_path), print)], Crew("local", patience=0.5))
    assert (tmp_path / "stalls").read_text() == "..."
    assert caplog.text.count("told nothing for 0.00833333 minutes; where it stood is in") == 2
    for number in (1, 2):
        assert "in wait_for_ever\n" in (home / f"stalled-{number}.txt").read_text()


@pytest.mark.slow
def test_one_that_tells_something_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handed_out(tmp_path, [Job("slow", partial(jobs.tell_for, 6.0), print)], Crew("local", patience=4.0))
    assert caplog.text == ""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_asked_to_stop_it_waits_until_its_workers_have_saved(
    number: signal.Signals, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from unsmooth.stopping import ended_as_interrupted

    def ask() -> None:
        for name in ("one", "two"):
            until(tmp_path / f"{name} begun")
        os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    wanted = [Job(name, partial(jobs.save_when_asked, tmp_path, name), print) for name in ("one", "two")]
    with pytest.raises(KeyboardInterrupt), ended_as_interrupted():
        handed_out(tmp_path / "home", wanted)
    asking.join()
    assert {path.name for path in tmp_path.glob("* saved")} == {"one saved", "two saved"}
    assert "workers save what they are at (2)" in caplog.text


def test_workers_of_a_driver_that_was_killed_save_and_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.executing.jobs", str(tmp_path)]
    with subprocess.Popen(command) as process:
        workers = [int(until(tmp_path / f"{name} begun")) for name in ("one", "two")]
        with pytest.raises(HeldError, match=f"one under way, by process {process.pid} on .* since 20"):
            handed_out(tmp_path / "home", [])
        process.kill()
    for name in ("one", "two"):
        until_there(tmp_path / f"{name} saved")
    for worker in workers:
        until_gone(worker)
    handed_out(tmp_path / "home", [])  # the lock went with the process


def until_there(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.01)


def until_gone(process: int) -> None:
    end = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end and "State:\tZ" not in Path(f"/proc/{process}/status").read_text():
            os.kill(process, 0)
            time.sleep(0.01)
        assert "State:\tZ" in Path(f"/proc/{process}/status").read_text()


def test_two_drivers_of_one_folder_are_refused(tmp_path: Path) -> None:
    told = f"by process {os.getpid()} on .*waiting for it, or another --out"
    with Driver(tmp_path, Crew(), Deadline()), pytest.raises(HeldError, match=told):
        handed_out(tmp_path, [], Crew())
    handed_out(tmp_path, [], Crew())


def test_a_folder_that_is_about_to_be_left_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.executing.driver._SECONDS_TO_LEAVE", 0.0)
    place, done = tmp_path / "run", list[Any]()
    place.mkdir()
    with contextlib.ExitStack() as other:
        other.enter_context(held(place, "a run"))

        def work(deadline: Deadline, tell: Any) -> str:
            with held(place, "a run"):
                return "done"

        def wanted() -> Iterator[Job]:
            if attempts:
                other.close()
            attempts.append(1)
            yield Job("run", work, done.append)

        attempts = list[int]()
        handed_out(tmp_path, [], Crew())
        with Driver(tmp_path, Crew(), Deadline()) as driver:
            driver.hand_out(wanted)
    assert done == ["done"]


@pytest.mark.parametrize(
    ("engine", "module", "told"),
    [
        ("ray", "ray", r"the package ray, for --engine ray, but got .*unsmooth\[ray\]"),
        ("slurm", "submitit", r"the package submitit, for --engine slurm, but got .*unsmooth\[slurm\]"),
        ("slurm", "", "SLURM for --engine slurm but got no command sbatch. Try --engine local"),
        ("locl", "", "a known engine but got 'locl'. Did you mean 'local'"),
    ],
)
def test_an_engine_that_is_not_there_is_one_line(
    engine: str, module: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module:
        monkeypatch.setitem(sys.modules, module, None)
    elif engine == "slurm":
        pytest.importorskip("submitit")
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(UnsmoothError, match=told) as caught:
        Crew(engine)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"processes": 0}, {"patience": float("nan")}, {"cores": -1.0}, {"gpus": float("inf")}]
)
def test_a_crew_that_cannot_be_is_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsmoothError, match=f"^Expected --{next(iter(wrong))} "):
        Crew("local", **wrong)


def test_under_torchrun_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UnsmoothError, match=r"but got 2 of torchrun\. Try --processes 2 without torchrun"):
        Driver(tmp_path, Crew(), Deadline())


def test_logging_is_left_as_it_is_in_this_process(tmp_path: Path) -> None:
    handed_out(tmp_path, [Job("a", partial(jobs.add, tmp_path, "a"), print)], Crew())
    assert logging.getLogger("unsmooth.stopping").level == logging.NOTSET
