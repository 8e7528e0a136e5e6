"""Runs in pieces: pausing leaves no trace in what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.tiny_runs import assert_same_run, tiny
from unsmooth.training import LossNotFiniteError, Progress, RunFolder, resume, train, train_all
from unsmooth.training.driving import side_by_side
from unsmooth.training.place import take_place
from unsmooth.training.run import Run

NO_TIME = 1e-9


def test_a_run_in_pieces_is_the_run_in_one(tmp_path: Path) -> None:
    config = tiny(steps=6, log_every=2, checkpoint_every=4, evaluate_every=3)
    train(config, tmp_path / "whole")
    heard: list[Progress] = []
    (folder,) = train(config, tmp_path / "pieces", minutes=NO_TIME, tell=heard.append)
    done = [folder.manifest()["done"]]
    assert (folder.manifest()["state"], folder.finished) == ("paused", False)
    while not folder.finished and len(done) < 9:
        resume(folder.path, minutes=NO_TIME, tell=heard.append)
        done.append(folder.manifest()["done"])
    assert done == [2, 3, 4, 6]
    assert "pieces pauses after step 2 of 6." in [one.note for one in heard]
    assert_same_run(tmp_path / "pieces", tmp_path / "whole")


def test_runs_whose_turn_does_not_come_wait_for_a_resume(tmp_path: Path) -> None:
    configs = {"one": tiny(steps=2), "two": tiny(steps=2, seed=5)}
    one, two = train_all(configs, tmp_path, minutes=NO_TIME)
    assert one.manifest()["state"] == "paused"
    assert not two.manifest()
    assert two.config().seed == 5
    resume(tmp_path)
    assert one.finished
    assert two.finished


@pytest.mark.parametrize("minutes", [None, 60.0])
def test_enough_time_is_all_the_time_needed(tmp_path: Path, minutes: float | None) -> None:
    (folder,) = train(tiny(steps=1), tmp_path / "run", minutes=minutes)
    assert folder.finished


def test_a_run_that_loses_its_numbers_leaves_its_neighbour_going(tmp_path: Path) -> None:
    broken = tiny(steps=3, optimiser__lr=1e30, optimiser__clip=0.0, schedule__warmup=0)
    configs = {"broken": broken, "whole": tiny(steps=3)}
    with take_place("cpu") as place:
        runs = []
        for name, config in configs.items():
            folder = RunFolder(tmp_path / name)
            folder.create(config)
            runs.append(Run(config, folder, place))
        with pytest.raises(LossNotFiniteError):
            side_by_side(runs)
    states = [run.folder.manifest()["state"] for run in runs]
    assert states == ["stopped", "finished"]
