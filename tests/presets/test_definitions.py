"""One model under many definitions: one pass, the numbers of separate scans, and what is said about them."""

from __future__ import annotations

import csv
import json
from xml.etree import ElementTree

import numpy as np
import pytest

import unsmooth
from tests.presets.references import REFERENCES
from tests.presets.streams import TEXTS, images, tiny_vit, vit_stream
from unsmooth.cli.app import run
from unsmooth.errors import UnsmoothError
from unsmooth.models import load
from unsmooth.report.plates import definitions_plate
from unsmooth.report.plates.plate import plate_html
from unsmooth.scanning import Definitions

COSINES = ("evo_vit", "gong", "vita")


@pytest.fixture(scope="module")
def compared() -> tuple[Definitions, int]:
    vit, calls = tiny_vit(), []
    handle = vit.register_forward_hook(lambda *_: calls.append(1))
    found = unsmooth.compare_presets(vit, images(), batch_size=2, progress=False, name="tiny")
    handle.remove()
    return found, len(calls)


def test_all_definitions_take_one_pass_over_the_data(compared):
    found, calls = compared
    assert calls == 3  # five images in batches of two
    assert len(found.scans) == 8


def test_every_curve_is_that_of_its_source(compared):
    stream = vit_stream(tiny_vit(), images())
    for name in compared[0].scans:
        means = [row.mean for row in compared[0].curve(name)]
        np.testing.assert_allclose(means, REFERENCES[name](stream), atol=2e-5)


def test_what_does_not_fit_is_left_out_and_told(compared):
    assert set(compared[0].left_out) == {name for name in REFERENCES if name.startswith("ethayarajh")}
    assert "token ids" in compared[0].left_out["ethayarajh_mev"]


def test_the_gap_is_the_widest_between_two_definitions_of_one_quantity(compared):
    stream = vit_stream(tiny_vit(), images())
    curves = np.array([REFERENCES[name](stream) for name in COSINES])
    [gap] = compared[0].gaps
    apart = curves.max(axis=0) - curves.min(axis=0)
    layer = int(apart.argmax())
    assert (gap.quantity, gap.layer) == ("cosine", layer)
    assert gap.size == pytest.approx(apart[layer], abs=2e-5)
    assert gap.lower == COSINES[int(curves[:, layer].argmin())]
    assert gap.higher == COSINES[int(curves[:, layer].argmax())]
    low, high = curves[:, -1].min(), curves[:, -1].max()
    assert (
        f"3 definitions of cosine put the last layer of tiny between {low:.2f} and {high:.2f}" in compared[0].sentence
    )


def test_each_is_what_a_scan_of_its_own_gives(compared):
    alone = unsmooth.scan(tiny_vit(), images(), preset="park_kim_amplitude", batch_size=2, progress=False)
    together = compared[0].scans["park_kim_amplitude"]
    assert set(together.sites) == {"residual", "mid"}
    np.testing.assert_allclose(together.to_frame()["mean"], alone.to_frame()["mean"], rtol=1e-6)
    assert together.metrics.keys() == alone.metrics.keys()


def test_one_that_was_named_must_fit(bert_folder):
    with pytest.raises(UnsmoothError, match="class token"):
        unsmooth.compare_presets(load(str(bert_folder)), TEXTS, presets=["vita", "gong"], progress=False)


def test_the_page_holds_definitions_numbers_and_no_script(compared):
    html = plate_html(definitions_plate(compared[0]))
    assert "<script" not in html
    for name, preset in compared[0].presets.items():
        assert name in html
        assert preset.source.split(",")[0].replace("&", "&amp;") in html
    assert "reconstructed" in html
    assert "ethayarajh_mev is left out" in html


def test_the_command_writes_figure_numbers_and_page(bert_folder, tmp_path, capsys):
    page, out = tmp_path / "page.txt", tmp_path / "out"
    page.write_text("\n\n".join(TEXTS), encoding="utf-8")
    assert run(["presets", str(bert_folder), str(page), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["left_out"]) == {"evo_vit", "gong", "park_kim_amplitude", "park_kim_variance"}
    assert {"presets.svg", "presets.png", "presets.csv", "presets.html", "definitions.csv"} <= {
        path.name for path in out.iterdir()
    }
    ElementTree.parse(out / "presets.svg")
    saved = unsmooth.load_scan(out / "scans" / "vita")
    rows = [row for row in csv.DictReader((out / "presets.csv").open(encoding="utf-8")) if row["series"] == "vita"]
    assert [float(row["y"]) for row in rows] == pytest.approx([row.mean for row in saved.curve()])
    assert told["last"]["vita"]["mean"] == pytest.approx(saved.curve()[-1].mean)
