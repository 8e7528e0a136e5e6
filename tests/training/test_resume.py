from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.killing import KilledError, killed_at
from tests.training.tiny_runs import assert_same_run, tiny, weights
from unsmooth.errors import UnsmoothError
from unsmooth.executing.holding import NOTE
from unsmooth.training import Progress, RunFolder, resume, train
from unsmooth.training.tasks import ImageTask


class StopError(Exception):
    pass


def train_until(step: int, config: Any, out: Path) -> None:
    """Train and be interrupted when the log comes to `step`."""

    def stop(progress: Progress) -> None:
        if progress.step >= step:
            raise StopError

    with pytest.raises(StopError):
        train(config, out, tell=stop)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny(steps=3), out)
    return out


def test_killed_at_any_touch_of_the_disk(tmp_path: Path, whole: Path) -> None:
    with killed_at(0, tmp_path / "count") as touched:
        train(tiny(steps=3), tmp_path / "count")
    began = next(number for number, touch in enumerate(touched, start=1) if touch == "os.rename config.json")
    last = len(touched)
    assert any("step-00000003.pt" in touch for touch in touched)
    # Over the whole run evenly, and every touch around the first checkpoint's move; the benchmark kills for real.
    first = next(number for number, touch in enumerate(touched, start=1) if touch.startswith("os.rename index.json"))
    moments = {*range(began + 1, last + 1, max(1, last // 4)), first, first + 1, first + 2, last}
    for moment in sorted(moments):
        out = tmp_path / f"killed-{moment}"
        with pytest.raises(KilledError), killed_at(moment, out):
            train(tiny(steps=3), out)
        resume(out)
        assert_same_run(out, whole)
        assert not [path for path in out.rglob(".*") if path.name not in (".lock", NOTE)], "drafts are swept up"
        shutil.rmtree(out)


@pytest.mark.parametrize(
    "changes",
    [
        {"remedies": ("sharpen(start=fresh, size=1.0)", "deescalate(learn=layer)")},
        {"remedies": ("sharpen(basis=orthogonal)",), "network__norm": "post", "micro_batch": 4, "ramp": 0.5},
        {"remedies": ("sharpen(basis=general)",), "network__norm": "peri", "repeats": 2, "log_every": 3},
    ],
    ids=["gram", "orthogonal", "general"],
)
def test_remedies_go_on_to_the_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = tiny(**changes)
    train(config, tmp_path / "whole")
    train_until(2, config, tmp_path / "cut")
    assert not RunFolder(tmp_path / "cut").finished
    resume(tmp_path / "cut")
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


def test_looking_does_not_change_a_run(tmp_path: Path) -> None:
    remedies = ("sharpen(start=fresh, size=1.0, layers='0')", "sharpen(basis=orthogonal, layers='1')")
    train(tiny(remedies=remedies, evaluate_every=1.0, measuring__every=1.0), tmp_path / "often")
    train(tiny(remedies=remedies, evaluate_every=0.0, checkpoint_every=0.0), tmp_path / "never")
    mine, other = weights(tmp_path / "often"), weights(tmp_path / "never")
    assert all(torch.equal(value, other[name]) for name, value in mine.items())


def test_what_draws_from_torchs_generator_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ImageTask.loss

    def loss(task: ImageTask, model: Any, batch: torch.Tensor) -> torch.Tensor:
        return real(task, model, batch) * (1 + torch.rand(()))

    monkeypatch.setattr(ImageTask, "loss", loss)
    torch.rand(5)
    train(tiny(), tmp_path / "whole")
    before = torch.get_rng_state()
    train_until(3, tiny(), tmp_path / "cut")
    torch.rand(7)
    resume(tmp_path / "cut")
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    torch.set_rng_state(before)
    train(tiny(steps=1), tmp_path / "short")
    assert torch.equal(torch.get_rng_state(), before), "the caller's own numbers are left alone"


def test_a_garbled_checkpoint_is_passed_over_and_said(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    train_until(3, tiny(steps=3), out)
    newest = sorted((out / "checkpoints").glob("*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-50])
    notes: list[str] = []
    resume(out, tell=lambda progress: notes.append(progress.note))
    assert [note for note in notes if note] == [
        f"{newest.name} is not whole and was passed over; the run goes on from step {int(newest.stem[5:]) - 1}."
    ]
    assert_same_run(out, whole)


def test_a_finished_run_is_left_alone(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "checkpoints")  # without which it would begin anew
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    told: list[Progress] = []
    folders = resume(out, tell=told.append)
    assert [folder.path for folder in folders] == [out]
    assert told[0].note == f"{out} is finished: all its 3 steps were taken before, and nothing was changed."
    assert (told[0].step, told[0].steps) == (3, 3)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_folder_of_seeds(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "runs"
    first = tiny(steps=3)
    for seed in range(3):
        RunFolder(out / f"seed-{seed}").create(replace(first, seed=seed))
    shutil.rmtree(out / "seed-0")
    shutil.copytree(whole, out / "seed-0")  # finished; the others are not begun
    folders = resume(out, config=first)
    assert [folder.path.name for folder in folders] == ["seed-0", "seed-1", "seed-2"]
    assert all(folder.finished for folder in folders)
    train(replace(first, seed=1), tmp_path / "alone")
    assert_same_run(out / "seed-1", tmp_path / "alone")
    assert_same_run(out / "seed-0", whole)


def test_other_settings_are_refused_by_name(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(UnsmoothError) as caught:
        resume(whole, config=tiny(steps=3, optimiser__lr=0.5, network__depth=3))
    assert str(caught.value) == (
        f"Expected the settings of the run in {whole} but got network.depth 2 there, 3 here, optimiser.lr 0.01 there, "
        "0.5 here. Try --resume alone, or a new --out."
    )
    resume(whole, config=tiny(steps=3, seed=9))  # the seed is the folder's own


def test_other_data_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train_until(2, tiny(), out)
    config = json.loads((out / "config.json").read_text())
    config["data"]["train_limit"] = 16
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsmoothError, match=r"the data that the run began with \(synthetic-images-4-24"):
        resume(out)


def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    sizes = iter([2**40, 0])
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": next(sizes)})())
    with pytest.raises(UnsmoothError, match=r"room to save step 2 in .* but got No space left on device"):
        train(tiny(steps=3), out)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["index.json", "step-00000001.pt"]
    monkeypatch.setattr(shutil, "disk_usage", usage)
    resume(out)
    assert_same_run(out, whole)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_too_little_memory_says_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def loss(*_: Any) -> torch.Tensor:
        raise error

    monkeypatch.setattr(ImageTask, "loss", loss)
    with pytest.raises(UnsmoothError) as caught:
        train(tiny(), tmp_path / "run")
    assert str(caught.value) == (
        "Expected memory for 8 samples at a time on cpu but got too little. "
        "Try --set micro_batch=4, which adds up to the same batch, or --set precision=bfloat16."
    )
