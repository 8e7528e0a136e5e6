"""The atlas, on models small enough to scan here."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from benchmarks.atlas_page import largest_step, more_ground
from benchmarks.trained_models.models import MODELS
from benchmarks.trained_models.more import MORE_MODELS
from torch import nn

import unsmooth
from benchmarks import atlas
from unsmooth.models import demo
from unsmooth.scanning import Row


def encoder(norm_first: bool, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


@pytest.fixture(scope="module")
def found() -> list[atlas.Measured]:
    batches = [torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    return [
        atlas.scan_batches(encoder(norm_first, seed), name, batches, "encoder", "noise")
        for name, norm_first, seed in (("before", True, 0), ("after", False, 1), ("again", False, 2))
    ]


def test_every_trained_model_and_every_demo_model_is_in_it() -> None:
    names = [one.name for one in atlas.specimens(Path("nowhere"), None)]
    assert names == [one.name for one in (*MODELS, *MORE_MODELS)] + [f"demo:{name}" for name in demo.NAMES]


def test_where_blocks_normalise_is_seen_for_what_is_no_text_too(found: Sequence[atlas.Measured]) -> None:
    assert [one.scan.manifest["model"]["norm"] for one in found] == ["pre-norm", "post-norm", "post-norm"]


def test_the_page_holds_the_numbers_of_the_scans(found: Sequence[atlas.Measured], tmp_path: Path) -> None:
    atlas.write(found, tmp_path / "atlas", tmp_path / "atlas.json")
    page = (tmp_path / "atlas" / "README.md").read_text(encoding="utf-8")
    stored = json.loads((tmp_path / "atlas.json").read_text())
    assert "3 trained models" in page
    for one, kept in zip(found, stored["models"], strict=True):
        last = one.scan.curve()[-1].mean
        row = next(line for line in page.splitlines() if line.startswith(f"| {one.scan.name} |"))
        assert f"→ {last:.3f} [" in row
        assert kept["curves"]["mean_cosine"]["mean"][-1] == pytest.approx(last, abs=1e-6)
        assert len(kept["random_weights"]["effective_rank"]["mean"]) == 4
    figure = (tmp_path / "atlas" / "mean_cosine.svg").read_text(encoding="utf-8")
    assert all(f">{one.scan.name}<" in figure for one in found)


def test_sentences_are_counted(found: Sequence[atlas.Measured]) -> None:
    scans = [one.scan for one in found]
    by_norm = more_ground(scans)[0]
    grown = sum(scan.changes["mean_cosine"].ci_low > 0 for scan in scans[1:])
    assert re.search(rf"post-norm: {grown} of 2 end more alike", by_norm)
    lasts = sorted(scan.curve()[-1].mean for scan in scans[1:])
    assert f"from {lasts[0]:.2f} to {lasts[1]:.2f}" in by_norm


def test_the_largest_step_by_hand() -> None:
    numbers = {"std": 0.0, "ci_low": 0.0, "ci_high": 0.0, "sequences": 1, "tokens": 1}
    means = (0.1, 0.2, 0.9, 0.3)
    rows = [Row(layer=at, site="residual", metric="mean_cosine", mean=m, **numbers) for at, m in enumerate(means)]
    assert largest_step(rows) == 2


def test_a_demo_model_is_scanned_on_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    if not demo.built():
        pytest.skip("demo models are not in this checkout")
    monkeypatch.setattr(atlas, "METRICS", ("mean_cosine",))
    monkeypatch.setattr(atlas, "IMAGES", 4)
    scan = atlas.scan_demo("demo:plain").scan
    own = unsmooth.scan(unsmooth.load("demo:plain"), demo.shown("demo:plain", 4), metrics=("mean_cosine",))
    assert scan.manifest["model"]["norm"] == "pre-norm"
    assert [row.mean for row in scan.curve()] == pytest.approx([row.mean for row in own.curve()], abs=1e-6)
