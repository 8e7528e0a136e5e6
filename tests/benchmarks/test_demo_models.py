"""Packing a finished run as a shipped model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open

import unsmooth
from benchmarks import demo_card, demo_models
from tests.models.standins import tiny_config
from unsmooth.errors import UnsmoothError
from unsmooth.models import demo
from unsmooth.training.data.locate import find_images
from unsmooth.training.plain import to_plain

NONE = Path("no-such-folder")


def test_a_file_makes_the_same_folder_as_the_run(demo_runs: Path, standins: Path, tmp_path: Path) -> None:
    run, file = demo_runs / "sharpen" / "seed-0", tmp_path / "sharpen.safetensors"
    demo_models.main(["--weights", str(run), str(file), "--evidence", str(NONE)])
    demo_models.main(["--pack", str(file), str(tmp_path / "out")])
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["README.md", "manifest.json", "model.safetensors", "network.json", "pixels.json"]
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (standins / "sharpen" / name).read_bytes()
    # The file alone says what it is.
    with safe_open(file, "pt") as opened:
        facts = json.loads(opened.metadata()["unsmooth"])
    assert facts["network"]["kind"] == "vit"
    assert facts["config"]["remedies"] == ["sharpen"]


@pytest.mark.parametrize("name", ["plain", "sharpen"])
def test_what_is_shipped_answers_as_the_run_does(demo_runs: Path, standins: Path, name: str) -> None:
    """The trained model with its remedy in force, beside the folded one in float16."""
    trained, shipped = unsmooth.load(demo_runs / name / "seed-0" / "final"), unsmooth.load(f"demo:{name}")
    seen = demo.shown(shipped, 50)
    with torch.no_grad():
        difference = (trained(seen) - shipped(seen)).abs().max()
    assert 0 < difference < 2e-3
    weights = load_file(standins / name / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}


def test_rounding_is_measured_on_the_test_images(demo_runs: Path, standins: Path) -> None:
    facts = demo.manifest("smooth")
    assert facts["rounding"]["images"] == 100
    assert facts["accuracy_of_run"] == facts["rounding"]["accuracy_float32"]
    assert facts["accuracy"] == facts["rounding"]["accuracy_float16"]
    assert 0 < facts["rounding"]["largest_difference"] < 1e-2 < facts["rounding"]["largest_logit"]
    tests = find_images("synthetic", classes=100, train_limit=200, test_limit=100)
    model = unsmooth.load("demo:smooth")
    mean, std = (
        torch.tensor(numbers)[:, None, None] for numbers in (tiny_config().augment.mean, tiny_config().augment.std)
    )
    with torch.no_grad():
        found = model((tests.test_images.float() / 255 - mean) / std).argmax(1)
    assert float((found == tests.test_labels).double().mean()) == facts["accuracy"]


def test_the_card_says_what_the_manifest_says(standins: Path) -> None:
    facts = demo.manifest("sharpen")
    text = (standins / "sharpen" / "README.md").read_text(encoding="utf-8")
    assert text == demo_card.card(facts)
    assert facts["sha256"] in text
    assert f"{facts['similarity']['layers'][0]:.3f} before the first layer" in text
    assert "made-up images" in text
    assert "[−1, 0]" in text
    assert "epochs 2 instead of 300" in text
    assert "MIT" in text


def test_cuts_leave_out_what_changes_no_number() -> None:
    same = {**to_plain(unsmooth.training.recipe("vit_cifar100")), "seed": 3, "log_every": 7}
    assert demo_card.cuts(same) == "none"


def test_all_takes_runs_or_files(
    demo_runs: Path, standins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, home = tmp_path / "runs", tmp_path / "home"
    images = (standins / demo.IMAGES_FILE).read_bytes()
    for name in ("plain", "smooth"):
        (runs / name).mkdir(parents=True)
        (runs / name / "seed-0").symlink_to(demo_runs / name / "seed-0")
    demo_models.main(["--weights", str(demo_runs / "sharpen" / "seed-0"), str(runs / "sharpen.safetensors")])
    monkeypatch.setattr(demo, "HOME", home)

    def known_images(data: Path, file: Path) -> Path:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(images)
        return file

    monkeypatch.setattr(demo_models, "write_images", known_images)
    demo_models.main(["--all", str(runs), "--evidence", str(NONE)])
    assert demo.built()
    assert unsmooth.load("demo:smooth") is not None
    (runs / "sharpen.safetensors").rename(runs / "plain.safetensors")
    with pytest.raises(UnsmoothError, match="the plain model but got the sharpen one"):
        demo_models.main(["--all", str(runs), "--evidence", str(NONE)])


def test_the_record_of_the_study_says_which_commit_trained_it(demo_runs: Path, tmp_path: Path) -> None:
    from unsmooth.evidence.records import Store, Trained

    made = {"commit": "abc", "changed": False, "versions": {"torch": "9"}, "when": "2000-01-01", "side_by_side": 3}
    line = {"epoch": 1, "accuracy": 0.5}
    runs = [Trained(name, seed, {}, made, (line,), {}) for name in demo.NAMES for seed in (0, 1)]
    Store(tmp_path).write_study("steering", "full", runs)
    shipped = demo_models.from_run(demo_runs / "plain" / "seed-0", tmp_path)
    assert shipped.facts["made"]["commit"] == "abc"
    assert shipped.facts["made"]["side_by_side"] == 3
    assert shipped.facts["made"]["hardware"].startswith("cpu")


def test_images_are_the_same_whatever_the_order_of_the_test_set() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(100).repeat(100)
    images = torch.randint(256, (10_000, 1, 2, 2), generator=generator, dtype=torch.uint8)
    chosen = demo_models.choose(images, labels)
    assert labels[chosen[:4]].tolist() == [0, 37, 74, 11]
    assert labels[chosen].bincount().tolist() == [3] * 100
    ordered = sorted(bytes(one.flatten().tolist()) for one in images[labels == 0])
    assert [bytes(images[place].flatten().tolist()) for place in chosen[::100]] == [
        ordered[16],
        ordered[49],
        ordered[82],
    ]
    shuffled = torch.randperm(10_000, generator=generator)
    again = demo_models.choose(images[shuffled], labels[shuffled])
    assert torch.equal(images[shuffled][again], images[chosen])


def test_what_cannot_be_packed_is_refused(demo_runs: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(UnsmoothError, match="a finished run"):
        demo_models.from_run(tmp_path, NONE)
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UnsmoothError, match="a file that --weights wrote"):
        demo_models.read_file(tmp_path / "other.safetensors")
