"""The state of a run: put back, over processes, at rest, written as the trained model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import unsmooth
from tests.training.tiny_runs import tiny
from unsmooth.errors import UnsmoothError
from unsmooth.networks.saving import build
from unsmooth.remedies import applied
from unsmooth.training.folder import RunFolder
from unsmooth.training.place import Place
from unsmooth.training.run import Run
from unsmooth.training.state import check_fits, put, restore, snapshot, unwrapped, whole_state, wrapped, write_final


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


CPU = torch.device("cpu")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Place]:
    """A group of one process, which is told that it is one of two."""
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield Place(CPU, 0, 2)
    dist.destroy_process_group()


def test_one_process_has_the_model_itself() -> None:
    model = build(tiny().network)
    assert wrapped(model, tiny(engine__sharding="shard"), Place(CPU)) is model
    assert unwrapped(model) is model


def test_copies(group: Place) -> None:
    model = build(tiny().network)
    found = wrapped(model, tiny(), group)
    assert isinstance(found, DistributedDataParallel)
    assert unwrapped(found) is model


def test_shards_are_cut_block_by_block_and_put_together(group: Place) -> None:
    model = build(tiny().network)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = wrapped(model, tiny(engine__sharding="shard"), group)
    assert unwrapped(found) is model
    blocks = [module for module in model.stack.blocks if isinstance(module, FSDPModule)]  # type: ignore[union-attr]
    assert len(blocks) == tiny().network.depth
    assert all(isinstance(one, DTensor) for one in found.parameters())
    whole = whole_state(found)
    assert whole.keys() == before.keys()
    assert all(torch.equal(whole[name], value) for name, value in before.items())


def test_whole_tensors_go_into_shards(group: Place) -> None:
    found = wrapped(build(tiny().network), tiny(engine__sharding="shard"), group)
    wanted = {name: torch.randn_like(value) for name, value in whole_state(found).items()}
    with torch.no_grad():
        for name, place in found.state_dict().items():
            put(place, wanted[name])
    whole = whole_state(found)
    assert all(torch.equal(whole[name], value) for name, value in wanted.items())


def test_what_one_process_says_all_say() -> None:
    place = Place(CPU)
    assert place.agree("here") == "here"
    assert place.agree(None) is None
    assert place.anywhere(True)
    assert not place.anywhere(False)
    assert int(place.lowest(torch.tensor(4))) == 4


def after_steps(folder: Path, **changes: Any) -> Run:
    settings = {"checkpoint_every": 0.0, "evaluate_every": 0.0, "log_every": 9, **changes}
    run = Run(tiny(**settings), RunFolder(folder), Place(torch.device("cpu")))
    for _ in range(2):
        run.advance()
    return run


@pytest.mark.parametrize("remedies", [(), ("sharpen(basis=orthogonal)", "deescalate(tau=0.5)")])
def test_what_was_trained_is_what_is_loaded(tmp_path: Path, remedies: tuple[str, ...]) -> None:
    run = after_steps(tmp_path, remedies=remedies)
    before = {name: value.clone() for name, value in run.engine.model.state_dict().items()}
    write_final(run.engine, run._at_rest, run.folder)
    assert run.engine.model.training
    found = run.engine.model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in before.items()), "writing does not change the run"
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for folder, average in ((run.folder.final, False), (run.folder.average, True)):
        loaded = unsmooth.load(folder)
        assert [one.name for one in applied(loaded)] == [remedy.partition("(")[0] for remedy in remedies]
        with run._at_rest(average=average) as model, torch.no_grad():
            torch.testing.assert_close(loaded(images), model(images), rtol=1e-6, atol=1e-6)
    with run._at_rest() as plain, torch.no_grad():
        last = plain(images)
    assert not torch.allclose(unsmooth.load(run.folder.average)(images), last, atol=1e-5)


def test_an_unfinished_folder_is_replaced_and_nothing_is_left_over(tmp_path: Path) -> None:
    run = after_steps(tmp_path, ema=0.0)
    run.folder.final.mkdir()
    (run.folder.final / "model.safetensors").write_text("half of it")
    write_final(run.engine, run._at_rest, run.folder)
    assert {"model.safetensors", "network.json"} <= {path.name for path in run.folder.final.iterdir()}
    assert not run.folder.average.exists()
    assert not [path for path in tmp_path.glob(".*") if path.name != ".lock"]
    unsmooth.load(run.folder.final)


def test_an_error_while_looking_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run = after_steps(tmp_path, remedies=("sharpen(basis=orthogonal)",))
    before = {name: value.clone() for name, value in run.engine.model.state_dict().items()}

    def look() -> None:
        with run._at_rest(average=True):
            raise KeyError

    with pytest.raises(KeyError):
        look()
    found = run.engine.model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in before.items())
    assert run.engine.model.training
