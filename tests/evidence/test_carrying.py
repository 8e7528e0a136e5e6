"""Studies in pieces: what is there is kept, what was begun goes on, and a run that breaks is an outcome."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.evidence import Bench, NotFinishedError, Study, Trained, carry_out_study
from unsmooth.evidence.records import differing_settings
from unsmooth.executing import Crew, HeldError, held
from unsmooth.stopping import Deadline
from unsmooth.training import Config, override, recipe
from unsmooth.training.plain import to_plain

SMALLEST = {
    "data.name": "synthetic",
    "network.classes": 4,
    "augment.classes": 4,
    "train_limit": 32,
    "test_limit": 8,
    "image": 8,
    "patch": 4,
    "depth": 1,
    "dim": 8,
    "heads": 2,
    "hidden": 16,
    "epochs": 2,
    "schedule.warmup": 0.5,
    "batch": 8,
    "precision": "float32",
    "measuring.every": 1,
    "measuring.at": (),
    "measuring.sequences": 4,
    "evaluate_every": 1,
    "checkpoint_every": 1,
    "log_every": 1,
}


class Smallest(Study):
    """Two variants of a ViT that trains in a second."""

    name: ClassVar[str] = "smallest"
    about: ClassVar[str] = "next to nothing"

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def configs(self, bench: Bench) -> dict[str, Config]:
        base = override(recipe("vit_cifar100"), {**SMALLEST, **self.settings})
        return {"plain": base, "sharpen": replace(base, remedies=("sharpen",))}

    def look(self, model: nn.Module, config: Config, device: torch.device) -> dict[str, Any]:
        return {"sum": float(sum(weight.detach().double().sum() for weight in model.parameters()))}


class Exploding(Smallest):
    """One of its variants loses its numbers."""

    def configs(self, bench: Bench) -> dict[str, Config]:
        plain = super().configs(bench)["plain"]
        return {"exploding": override(plain, {"lr": 1e30, "schedule.warmup": 0}), "plain": plain}


def bench(folder: Path, **changes: Any) -> Bench:
    return Bench(scale="tiny", out=folder / "results", runs=folder / "runs", device="cpu", **changes)


def outcome(run: Trained) -> dict[str, Any]:
    """What must not depend on how often a run was interrupted."""
    return {name: value for name, value in asdict(run).items() if name != "made"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, list[Trained]]:
    """The study in one go."""
    place = bench(tmp_path_factory.mktemp("whole"))
    return place, carry_out_study(Smallest(), place, seeds=(0,))


def test_a_study_gives_what_claims_draw_on(whole: tuple[Bench, list[Trained]]) -> None:
    place, runs = whole
    assert [(run.variant, run.seed) for run in runs] == [("plain", 0), ("sharpen", 0)]
    plain, sharp = runs
    assert plain.made["state"] == "finished"
    assert (plain.made["steps"], plain.made["side_by_side"]) == (8, 1)
    assert 0 <= plain.accuracy <= 1
    assert [moment["epoch"] for moment in plain.similarity["mean_cosine"]] == [0, 1, 2]
    assert len(plain.layers()) == len(plain.layers(moment=0)) == 2
    assert plain.looked["sum"] != sharp.looked["sum"]
    assert place.store.study("smallest", "tiny") == runs


def test_a_study_in_pieces_is_the_study_in_one_go(whole: tuple[Bench, list[Trained]], tmp_path: Path) -> None:
    done = []
    for _ in range(2):
        with pytest.raises(NotFinishedError, match="Try the same command again"):
            carry_out_study(Smallest(), bench(tmp_path, deadline=Deadline(1e-9)), seeds=(0,))
        done.append(json.loads((tmp_path / "runs/tiny/smallest/plain/seed-0/manifest.json").read_text())["done"])
    assert 0 < done[0] < done[1] < 8
    found = carry_out_study(Smallest(), bench(tmp_path), seeds=(0,))
    assert [outcome(run) for run in found] == [outcome(run) for run in whole[1]]


def test_processes_train_what_this_one_does(whole: tuple[Bench, list[Trained]], tmp_path: Path) -> None:
    heard = list[str]()
    place = bench(tmp_path, crew=Crew("local", 2, cores=1), announce=heard.append)
    found = carry_out_study(Smallest(), place, seeds=(0,))
    assert [outcome(run) for run in found] == [outcome(run) for run in whole[1]]
    assert [run.made["data"] for run in found] == [run.made["data"] for run in whole[1]]
    assert len(heard) == 1
    assert heard[0].startswith("smallest: 2 runs, about ")


def test_two_commands_on_one_study_are_refused(tmp_path: Path) -> None:
    home = tmp_path / "runs/tiny/smallest"
    home.mkdir(parents=True)
    with held(home, "x"), pytest.raises(HeldError, match="one under way, by process"):
        carry_out_study(Smallest(), bench(tmp_path), seeds=(0,))


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    with pytest.raises(NotFinishedError, match="plain, sharpen of seed 0 is not done"):
        carry_out_study(Smallest(), bench(tmp_path, deadline=Deadline(0.0)), seeds=(0,))
    assert not (tmp_path / "runs").exists()


def test_what_is_there_is_not_trained_again(whole: tuple[Bench, list[Trained]]) -> None:
    place, runs = whole
    told: list[Any] = []
    again = replace(place, runs=Path("nowhere"), tell=told.append, deadline=Deadline(0.0))
    assert carry_out_study(Smallest(), again, seeds=(0,)) == runs
    assert carry_out_study(Smallest(), again, seeds=(0,), variants=["sharpen"]) == runs[1:]
    assert told == []
    assert not Path("nowhere").exists()


def test_what_another_command_trained_meanwhile_is_kept(whole: tuple[Bench, list[Trained]], tmp_path: Path) -> None:
    place, (plain, sharp) = bench(tmp_path), whole[1]

    def tell(_: Any) -> None:
        place.store.write_study("smallest", "tiny", [replace(sharp, seed=7)])

    carry_out_study(Smallest(), replace(place, tell=tell), seeds=(0,), variants=["plain"])
    assert [outcome(run) for run in place.store.study("smallest", "tiny")] == [
        outcome(plain),
        outcome(replace(sharp, seed=7)),
    ]


def test_results_of_other_settings_are_refused(whole: tuple[Bench, list[Trained]]) -> None:
    with pytest.raises(
        UnsmoothError, match=r"Expected results of smallest with the settings of now .* \(optimiser\.lr\)"
    ):
        carry_out_study(Smallest(lr=0.5), whole[0], seeds=(0,))
    with pytest.raises(UnsmoothError, match="Expected a variant of smallest but got 'smooth'"):
        carry_out_study(Smallest(), whole[0], variants=["smooth"])


def test_a_setting_that_is_younger_than_a_result_had_its_default_then() -> None:
    config = override(recipe("vit_cifar100"), SMALLEST)
    older = {name: value for name, value in to_plain(config).items() if name != "losses"}
    older["data"] = {name: value for name, value in older["data"].items() if name != "hold_out"}
    assert differing_settings(older, config) == []
    assert differing_settings(older, replace(config, losses=("cosine(weight=0.1)",))) == ["losses"]
    held_out = override(config, {"data.hold_out": 0.1, "lr": 0.5})
    assert differing_settings(older, held_out) == ["data.hold_out", "optimiser.lr"]


def test_what_is_there_at_all_is_a_setting_and_where_it_is_trained_is_none() -> None:
    config = override(recipe("vit_cifar100"), SMALLEST)
    plain = to_plain(config)
    assert all(path.startswith("augment") for path in differing_settings({**plain, "augment": None}, config))
    assert "augment" in differing_settings(plain, replace(config, augment=None))
    elsewhere = override(config, {"data.path": "elsewhere", "engine.device": "cpu", "precision": "float64"})
    assert differing_settings(plain, elsewhere) == []


def test_a_run_that_loses_its_numbers_is_recorded_and_its_sibling_finishes(
    whole: tuple[Bench, list[Trained]], tmp_path: Path
) -> None:
    lost, kept = carry_out_study(Exploding(), bench(tmp_path), seeds=(0,))
    assert lost.made["state"] == "stopped"
    assert lost.made["done"] < lost.made["steps"]
    assert lost.looked == {}
    assert outcome(kept) == outcome(whole[1][0])
    assert [run.made["state"] for run in bench(tmp_path).store.study("smallest", "tiny")] == ["stopped", "finished"]
    assert carry_out_study(Exploding(), bench(tmp_path, deadline=Deadline(0.0)), seeds=(0,)) == [lost, kept]
