"""Asked to stop by a signal, a run is saved where it is, and goes on from there to the same bits."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.training.tiny_runs import assert_same_run, tiny
from unsmooth.stopping import asked_to_stop, ended_as_interrupted
from unsmooth.training import Progress, RunFolder, resume, train, train_all

LONG: dict[str, Any] = {"steps": 6, "checkpoint_every": 6, "log_every": 1}


def sending(number: signal.Signals, times: int = 1, step: int = 2) -> Any:
    """Whoever hears of a step sends a signal then."""
    left = [times]

    def tell(progress: Progress) -> None:
        if progress.step >= step and left[0]:
            left[0] -= 1
            os.kill(os.getpid(), number)

    return tell


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_is_saved_and_goes_on_to_the_same_bits(
    number: signal.Signals, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(**LONG), tmp_path / "run", tell=sending(number))
    about = RunFolder(tmp_path / "run").manifest()
    assert (about["state"], 2 <= about["done"] < 6) == ("paused", True)
    assert "once more stops at once" in caplog.text
    assert signal.getsignal(number) is before
    moved = list[int]()
    resume(tmp_path / "run", tell=lambda progress: moved.append(progress.step))
    assert min(moved) >= about["done"]
    train(tiny(**LONG), tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_who_asks_twice_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny(**{**LONG, "log_every": 3}), tmp_path, tell=sending(signal.SIGINT, times=2, step=0))
    assert RunFolder(tmp_path).manifest()["state"] != "paused"


def test_runs_whose_turn_has_not_come_are_left_for_later(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_all({"plain": tiny(**LONG)}, tmp_path, seeds=2, tell=sending(signal.SIGTERM))
    states = {one: RunFolder(tmp_path / "plain" / one).manifest().get("state") for one in ("seed-0", "seed-1")}
    assert states["seed-0"] == "paused"
    assert states["seed-1"] not in ("paused", "finished")


def test_what_is_ignored_or_handled_by_others_stays_so() -> None:
    heard = list[int]()
    for handler in (signal.SIG_IGN, lambda number, _: heard.append(number)):
        before = signal.signal(signal.SIGTERM, handler)
        try:
            with asked_to_stop() as asked, ended_as_interrupted():
                os.kill(os.getpid(), signal.SIGTERM)
                assert not asked()
        finally:
            signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_another_thread_hears_nothing() -> None:
    heard = list[bool]()

    def work() -> None:
        with asked_to_stop() as asked, ended_as_interrupted():
            heard.append(asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]


def test_an_ended_command_is_an_interrupted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), ended_as_interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with ended_as_interrupted():
        assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
