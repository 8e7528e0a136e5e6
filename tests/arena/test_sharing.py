"""Processes that share an arena: those that die are told, those that stall are begun anew."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.arena.tiny_arenas import plan
from unsmooth.arena import ArenaFolder, share_out
from unsmooth.errors import UnsmoothError
from unsmooth.stopping import asked_to_stop

PATIENCE = 1.0 / 60


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ArenaFolder]:
    """An arena in which a process does what it is told to; forked, it has nothing to import."""
    quick = multiprocessing.get_context("fork")
    monkeypatch.setattr("unsmooth.arena.sharing.multiprocessing.get_context", lambda _: quick)

    def share(work: Callable[[], Any]) -> ArenaFolder:
        monkeypatch.setattr("unsmooth.arena.sharing.carry_out_arena", lambda *_, **__: work())
        folder, telling = ArenaFolder(tmp_path / "out"), lambda: nullcontext(lambda _: None)
        share_out(plan(), folder, 1, minutes=None, telling=telling, call="", patience=PATIENCE)
        return folder

    return share


def waits_for_ever() -> None:
    threading.Event().wait()


def test_a_process_that_is_killed_is_told(share: Callable[..., ArenaFolder]) -> None:
    with pytest.raises(UnsmoothError, match=r"got one that was ended \(exit code 9\)\. Try the same command, which"):
        share(lambda: os._exit(9))


def test_what_goes_wrong_in_a_process_is_told(share: Callable[..., ArenaFolder]) -> None:
    with pytest.raises(UnsmoothError, match="ZeroDivisionError: division by zero"):
        share(lambda: 1 / 0)


def test_another_takes_the_place_of_one_that_does_nothing(
    share: Callable[..., ArenaFolder], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = tmp_path / "marks"

    def stall_twice() -> None:
        with marks.open("a") as file:
            file.write(".")
        if len(marks.read_text()) <= 2:
            waits_for_ever()

    folder = share(stall_twice)
    assert marks.read_text() == "..."
    assert caplog.text.count("process 0 did nothing for 0.0166667 minutes and was begun anew") == 2
    for number in (1, 2):
        assert "in waits_for_ever\n" in (folder.runs / f"stalled-0-{number}.txt").read_text()


def test_one_that_never_does_anything_is_given_up(
    share: Callable[..., ArenaFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unsmooth.arena.sharing._MOST_STALLS", 1)
    with pytest.raises(UnsmoothError, match="processes that come to their end but got one that was ended"):
        share(waits_for_ever)


def test_one_that_is_busy_is_left_alone(
    share: Callable[..., ArenaFolder], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        end = time.process_time() + 60.0 * 2.5 * PATIENCE
        while time.process_time() < end:
            pass
        (tmp_path / "done").touch()

    folder = share(work)
    assert (tmp_path / "done").exists()
    assert caplog.text == ""
    assert not folder.runs.exists()


def test_interrupted_it_waits_until_its_processes_have_saved(
    share: Callable[..., ArenaFolder], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        with asked_to_stop() as asked:
            (tmp_path / "begun").touch()
            while not asked():
                time.sleep(0.01)
        (tmp_path / "saved").touch()
        raise KeyboardInterrupt

    def interrupt() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        share(work)
    assert (tmp_path / "saved").exists()
    assert "processes save what they are at (1)" in caplog.text
