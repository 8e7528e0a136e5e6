from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.tiny_runs import tiny
from unsmooth.errors import UnsmoothError
from unsmooth.training.folder import RunFolder
from unsmooth.training.place import Place
from unsmooth.training.run import Run
from unsmooth.training.snapshot import check_fits, restore, snapshot


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made(tmp_path)


def made(folder: Path, **changes: Any) -> Run:
    settings = {"evaluate_every": 0.0, "checkpoint_every": 0.0, **changes}
    return Run(tiny(**settings), RunFolder(folder), Place(torch.device("cpu")))


def steps(run: Run, count: int) -> None:
    for number in range(count):
        run.task.begin(run.step + number)
        run.engine.accumulate()
        run.engine.update()


def test_a_snapshot_has_everything_that_a_step_writes_to(run: Run) -> None:
    names = {name.split("/")[0] for name in snapshot(run.engine)}
    assert names == {"model", "clocks", "average", "own"}
    steps(run, 1)
    state = snapshot(run.engine)
    parameters = {name for name, _ in run.engine.model.named_parameters()}
    assert {f"average/{name}" for name in parameters} <= state.keys()
    for key in ("step", "exp_avg", "exp_avg_sq"):
        assert {f"moments/{name}/{key}" for name in parameters} <= state.keys()
    assert "own/0/generators/cpu" in state


@pytest.mark.parametrize(
    "remedies", [(), ("sharpen",), ("sharpen(basis=orthogonal)", "deescalate(tau=0.3)"), ("neutreno", "attnscale")]
)
def test_two_steps_again_give_the_same_bits(tmp_path: Path, remedies: tuple[str, ...]) -> None:
    run = made(tmp_path, remedies=remedies)
    steps(run, 1)
    before = snapshot(run.engine, copied=True)
    steps(run, 2)
    after = snapshot(run.engine, copied=True)
    assert any(not torch.equal(after[name], before[name]) for name in before if name.startswith("model/"))
    restore(run.engine, before)
    found = snapshot(run.engine)
    assert found.keys() == before.keys()
    assert all(torch.equal(found[name], before[name]) for name in before)
    steps(run, 2)
    found = snapshot(run.engine)
    assert all(torch.equal(found[name], after[name]) for name in after)


def test_a_copy_stays_and_tensors_stay_where_they_are(run: Run) -> None:
    steps(run, 1)
    views, copies = snapshot(run.engine), snapshot(run.engine, copied=True)
    places = {name: value.data_ptr() for name, value in views.items()}
    steps(run, 1)
    name = next(name for name in views if name.startswith("model/"))
    assert not torch.equal(views[name], copies[name])
    restore(run.engine, copies)
    assert torch.equal(views[name], copies[name])
    found = snapshot(run.engine)
    moved = [name for name, value in found.items() if value.data_ptr() != places[name] and "generators" not in name]
    assert not moved


def test_back_to_before_the_first_step(run: Run) -> None:
    first = snapshot(run.engine, copied=True)
    steps(run, 2)
    after = snapshot(run.engine, copied=True)
    restore(run.engine, first)
    assert all(not kept.any() for one in run.engine.moments().values() for kept in one.values())
    steps(run, 2)
    found = snapshot(run.engine)
    assert all(torch.equal(found[name], after[name]) for name in after)


def test_torchs_own_generator_goes_on_where_it_was(run: Run) -> None:
    state = torch.get_rng_state()
    try:
        saved = snapshot(run.engine, copied=True)
        wanted = torch.rand(3)
        restore(run.engine, saved)
        assert torch.equal(torch.rand(3), wanted)
    finally:
        torch.set_rng_state(state)


def test_the_state_of_another_run_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    run = made(tmp_path / "a")
    before = snapshot(run.engine, copied=True)
    for other, words in (
        (made(tmp_path / "b", network__depth=3), "other tensors"),
        (made(tmp_path / "c", network__dim=16), "other tensors"),
        (made(tmp_path / "d", remedies=("sharpen",)), "other tensors"),
        (made(tmp_path / "e", ema=0.0), "other tensors"),
    ):
        with pytest.raises(UnsmoothError, match=words):
            restore(run.engine, snapshot(other.engine))
    found = snapshot(run.engine)
    # Building models draws from torch's generator.
    assert all(torch.equal(found[name], before[name]) for name in before if "generators" not in name)


def test_what_a_task_remembers_is_kept(run: Run) -> None:
    remembered = {"memory": torch.arange(6.0).reshape(2, 3)}
    run.task.state = lambda: remembered  # type: ignore[method-assign]
    saved = snapshot(run.engine, copied=True)
    remembered["memory"].zero_()
    restore(run.engine, saved)
    assert remembered["memory"].tolist() == [[0, 1, 2], [3, 4, 5]]
    for wrong in ({}, {"task/memory": torch.zeros(2, 1)}):
        with pytest.raises(UnsmoothError, match=r"other tensors \(task/memory\)"):
            check_fits(saved, {**{name: value for name, value in saved.items() if name != "task/memory"}, **wrong})


def test_a_state_of_more_processes_fits(run: Run) -> None:
    saved = snapshot(run.engine, copied=True)
    restore(run.engine, {**saved, "own/1/generators/cpu": torch.get_rng_state()})
