"""Recipes: what they say, that they survive JSON, and that the small ones run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import unsmooth
from unsmooth.networks.config import DecoderConfig, EncoderConfig
from unsmooth.training import RECIPES, Config, recipe, train
from unsmooth.training.plain import from_plain, override, to_plain
from unsmooth.training.tasks import TASKS

TEXTS = ("cram_bert", "xl_wt103")


@pytest.mark.parametrize("size", ["base", "tiny"])
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_settings_survive_json(name: str, size: Any) -> None:
    config = recipe(name, size)
    assert config.recipe == name
    assert config.size == size
    assert config.task in TASKS
    assert from_plain(Config, json.loads(json.dumps(to_plain(config)))) == config


def test_cram_bert_is_as_published() -> None:
    network = recipe("cram_bert").network
    assert isinstance(network, EncoderConfig)
    # 3,072 in the authors' file is the width before the gate.
    assert (network.depth, network.dim, network.heads, 2 * network.hidden) == (16, 768, 12, 3072)
    config = recipe("cram_bert")
    sequences = 900_000 * 128  # the most that the authors' configuration allows
    assert config.steps is not None
    assert config.steps * config.batch * (1 - config.ramp / 2) == pytest.approx(sequences, rel=0.01)
    assert config.schedule.warmup == 0.75 * config.steps


def test_xl_is_as_published() -> None:
    network = recipe("xl_wt103").network
    assert isinstance(network, DecoderConfig)
    assert (network.head_dim, network.heads, network.length, network.memory) == (41, 10, 150, 150)
    assert network.embedding_scale**2 == pytest.approx(network.dim)


def few_steps(name: str, **changes: Any) -> Config:
    """As small as it gets, without losing a part of the recipe."""
    small = {"network.depth": 2, "network.dim": 12, "network.heads": 3, "network.hidden": 24, "measuring.sequences": 2}
    lengths = {"steps": 3, "data.test_limit": 8, "measuring.every": 0, "measuring.at": (), "batch": 16}
    one_metric = {"measuring.metrics": ("mean_cosine",), "log_every": 1}
    return override(recipe(name, "tiny"), small | lengths | one_metric | changes)


def logged(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


@pytest.mark.parametrize("name", TEXTS)
def test_text_recipes_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (folder,) = train(few_steps(name, **({"micro_batch": 8} if name == "cram_bert" else {})), tmp_path / "run")
    assert len(logged(folder.path, "train")) == 3
    (found,) = logged(folder.path, "evaluation")
    assert found["loss"] > 0
    assert found["unigram_loss"] > 0
    assert folder.manifest()["data"]["synthetic"] is True
    loaded = unsmooth.load(folder.final)
    assert type(loaded).__name__ == {"cram_bert": "Encoder", "xl_wt103": "Decoder"}[name]
    assert (folder.final / "tokenizer.json").is_file()


def test_fine_tuning_starts_from_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (first,) = train(
        dataclasses.replace(few_steps("cram_bert", micro_batch=8), remedies=("deescalate",)), tmp_path / "first"
    )
    rows = [{"premise": "a", "hypothesis": "b", "label": ("entailment", "neutral")[one % 2]} for one in range(32)]
    place = tmp_path / "data" / "superglue" / "CB"
    place.mkdir(parents=True)
    for split in ("train", "val"):
        (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tuned = few_steps("superglue", steps=None, epochs=1, **{"data.encoder": str(first.final), "data.test_limit": None})
    (second,) = train(tuned, tmp_path / "second")
    (found,) = logged(second.path, "evaluation")
    assert found["majority_accuracy"] == 0.5
    assert {"accuracy", "f1_macro", "loss"} <= set(found)
    loaded = unsmooth.load(second.final)
    assert type(loaded).__name__ == "Classifier"
    assert [one.name for one in unsmooth.remedies.applied(loaded)] == ["deescalate"]
