"""Starting and taking up several runs at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.tiny_runs import tiny, weights
from unsmooth import UnsmoothError, load
from unsmooth.remedies import applied
from unsmooth.training import Progress, RunFolder, resume, train, train_all


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunFolder], list[Progress]]:
    out = tmp_path_factory.mktemp("variants")
    heard: list[Progress] = []
    plain = tiny(steps=2)
    configs = {"plain": plain, "calm": tiny(steps=2, remedies=("deescalate(tau=0.5)",))}
    return out, train_all(configs, out, seeds=2, tell=heard.append), heard


def test_a_folder_for_each_variant_and_seed(variants) -> None:
    out, folders, _ = variants
    wanted = [out / name / f"seed-{seed}" for name in ("plain", "calm") for seed in (0, 1)]
    assert [folder.path for folder in folders] == wanted
    assert [folder.config().seed for folder in folders] == [0, 1, 0, 1]
    assert all(folder.finished for folder in folders)


def test_a_variant_is_the_run_alone(variants, tmp_path: Path) -> None:
    out, _, _ = variants
    (alone,) = train(tiny(steps=2, seed=1), tmp_path / "alone")
    beside, by_itself = weights(out / "plain" / "seed-1"), weights(alone.path)
    assert beside.keys() == by_itself.keys()
    assert all(torch.equal(beside[name], by_itself[name]) for name in beside)


def test_the_trained_model_comes_back_with_its_remedies(variants) -> None:
    out, _, _ = variants
    assert [one.name for one in applied(load(out / "calm" / "seed-0" / "final"))] == ["deescalate"]
    assert not applied(load(out / "plain" / "seed-0" / "final"))


def test_runs_are_told_apart(variants) -> None:
    _, _, heard = variants
    assert {one.name for one in heard} == {"plain/seed-0", "plain/seed-1", "calm/seed-0", "calm/seed-1"}


@pytest.mark.parametrize(("name", "said"), [("pets", True), ("synthetic", False)])
def test_data_that_had_to_be_made_up_is_said(tmp_path: Path, name: str, said: bool) -> None:
    notes: list[str] = []
    train(tiny(steps=1, data__name=name), tmp_path / "run", tell=lambda progress: notes.append(progress.note))
    assert any("There is no data/pets here" in note for note in notes) == said


def test_all_are_found_again(variants) -> None:
    out, folders, _ = variants
    heard: list[Progress] = []
    again = resume(out, tell=heard.append)
    assert sorted(folder.path for folder in again) == sorted(folder.path for folder in folders)
    assert all("is finished" in one.note for one in heard)


def test_a_run_that_cannot_be_built_leaves_no_folder(tmp_path: Path) -> None:
    for wrong, said in (
        ({"data__path": str(tmp_path / "nowhere")}, "no such folder"),
        ({"measuring__metrics": ("mean_cosine(absolute=3)",)}, "absolute as True or False but got 3"),
    ):
        with pytest.raises(UnsmoothError, match=said):
            train(tiny(**wrong), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    (folder,) = train(tiny(steps=1), tmp_path / "run")
    assert folder.finished


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    train(tiny(steps=1), tmp_path / "run")
    with pytest.raises(UnsmoothError, match="Expected a new folder for the run"):
        train(tiny(steps=1), tmp_path / "run")
    assert RunFolder(tmp_path / "run").finished
