"""Published kinds of figure, drawn anew by one command each."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import unsmooth
from tests.presets.references import half_diagonal
from tests.presets.streams import TEXTS, images, tiny_vit, vit_stream
from unsmooth.cli.app import run
from unsmooth.report.plates import write_plate
from unsmooth.report.redraw import KINDS, redraw


def points(path: Path) -> dict[tuple[str, str], list[tuple[float, float]]]:
    found = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["panel"], row["series"]].append((float(row["x"]), float(row["y"])))
    return dict(found)


def test_fourier_shows_the_notebooks_curve_of_every_layer(tmp_path):
    vit = tiny_vit()
    plate = redraw("fourier", [("tiny", vit, images())], batch_size=2, progress=False)
    write_plate(plate, tmp_path)
    drawn, stream = points(tmp_path / "fourier.csv"), vit_stream(vit, images())
    for layer, states in enumerate(stream.outputs):
        curve = drawn["tiny: by frequency", f"layer {layer}"]
        assert [x for x, _ in curve] == [0.0, 0.5, 1.0]
        np.testing.assert_allclose([y for _, y in curve], half_diagonal(states), atol=2e-5)
    by_depth = dict(drawn["Highest frequency, by depth", "tiny"])
    assert list(by_depth) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert by_depth[1.5] == pytest.approx(half_diagonal(stream.mids[1])[-1], abs=2e-5)


@pytest.mark.parametrize("kind", ["cosine", "rank-residual", "variance"])
def test_the_models_that_come_along_need_no_words(standins, tmp_path, kind, capsys):
    assert run(["redraw", kind, "--out", str(tmp_path), "--max-batches", "1"]) == 0
    name = kind.replace("-", "_")
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{end}" for end in ("svg", "png", "csv", "html")}
    ElementTree.parse(tmp_path / f"{name}.svg")
    models = {series for _, series in points(tmp_path / f"{name}.csv")}
    assert {"demo:plain", "demo:sharpen", "demo:smooth"} <= models
    assert KINDS[name].source.split(" (")[0].replace("&", "&amp;") in (tmp_path / f"{name}.html").read_text("utf-8")
    assert "demo:plain" in capsys.readouterr().out


def test_rank_residual_has_random_weights_beside(tmp_path):
    vit = tiny_vit()
    plate = redraw("rank_residual", [("tiny", vit, images())], progress=False)
    write_plate(plate, tmp_path)
    drawn = points(tmp_path / "rank_residual.csv")
    found = unsmooth.scan(vit, images(), preset="dong", baseline=True, progress=False)
    assert [y for _, y in drawn["As it is", "tiny"]] == pytest.approx([row.mean for row in found.curve()])
    random = drawn["Random weights", "tiny"]
    assert [y for _, y in random] == pytest.approx([row.mean for row in found.baseline.curve()])
    # Both sides are to be compared, so both axes reach from the least of all values to the largest.
    every = [y for curve in drawn.values() for _, y in curve]
    for panel in plate.figure.panels:
        low, high = panel.within
        assert low <= min(every) < max(every) <= high
    svg = (tmp_path / "rank_residual.svg").read_text("utf-8")
    left, right = re.findall(r"Y-axis titled 'relative residual'[^\"]*values from (\S+) to (\S+)", svg)
    assert left == right


def test_words_in_context_are_drawn_for_texts(bert_folder, tmp_path):
    page = tmp_path / "page.txt"
    page.write_text("\n\n".join(TEXTS), encoding="utf-8")
    assert run(["redraw", "self-similarity", str(bert_folder), str(page), "--out", str(tmp_path / "out"), "-q"]) == 0
    panels = {panel for panel, _ in points(tmp_path / "out" / "self_similarity.csv")}
    assert len(panels) == 4


def test_what_does_not_fit_or_does_not_exist_is_one_line(bert_folder, tmp_path, capsys):
    page = tmp_path / "page.txt"
    page.write_text("\n\n".join(TEXTS), encoding="utf-8")
    assert run(["redraw", "fourier", str(bert_folder), str(page), "--out", str(tmp_path / "out")]) == 2
    assert "one class token" in capsys.readouterr().err
    assert run(["redraw", "furier"]) == 2
    assert "Did you mean 'fourier'" in capsys.readouterr().err
