"""Charts, figures on disk and the notebook cell."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.report.fakes import HOSTILE, METRICS, full_scan, hostile_scan, plain_scan
from unsmooth.errors import UnsmoothError
from unsmooth.report import layer_chart, notebook_html, save_figures
from unsmooth.report.charts import LAYER_TITLE, chart_svg

altair = pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")


def layers_of(spec: dict) -> list[str]:
    return [layer["name"] for layer in spec["layer"]]


def words_of(svg: str) -> list[str]:
    return [text for node in ElementTree.fromstring(svg).iter() if (text := (node.text or "").strip())]


def test_chart_is_valid_vega_lite_with_all_layers() -> None:
    spec = layer_chart([full_scan(), plain_scan("GPT-2 small")]).to_dict()
    altair.LayerChart.from_dict(spec)
    assert layers_of(spec) == ["band", "line", "point", "chance", "label"]
    assert spec["title"]["text"] == "mean_cosine"
    assert spec["title"]["subtitle"][0] == METRICS["mean_cosine"].definition
    scale = spec["layer"][1]["encoding"]["strokeDash"]["scale"]
    assert scale["domain"] == ["all-MiniLM-L6-v2", "all-MiniLM-L6-v2, random weights", "GPT-2 small"]
    assert scale["range"] == [[1, 0], [6, 4], [1, 0]]


def test_single_sequence_has_no_band_and_no_chance_no_rule() -> None:
    scan = plain_scan(sequences=1)
    assert "band" not in layers_of(layer_chart([scan]).to_dict())
    assert layers_of(layer_chart([scan], "dirichlet_energy").to_dict()) == ["line", "point"]


def test_svg_says_what_is_drawn() -> None:
    words = words_of(chart_svg(layer_chart([full_scan()], "token_similarity", "attention")))
    for expected in (
        "token_similarity",
        METRICS["token_similarity"].definition,
        LAYER_TITLE,
        "chance 0.03125",
        "all-MiniLM-L6-v2, random weights",
        "0.6",
    ):
        assert expected in words


def test_svg_of_hostile_scan_is_well_formed_and_literal() -> None:
    svg = chart_svg(layer_chart([replace(hostile_scan(), name=f"{HOSTILE}\x1b\ud83d")]))
    assert f"{HOSTILE}\ufffd\ufffd" in words_of(svg)
    assert "<img" not in svg


def test_scans_without_the_curve_are_left_out() -> None:
    other = plain_scan("no energy")
    other = replace(other, rows=tuple(row for row in other.rows if row.metric != "dirichlet_energy"))
    spec = layer_chart([other, plain_scan()], "dirichlet_energy").to_dict()
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["all-MiniLM-L6-v2"]


def test_unknown_metric_and_site_are_named() -> None:
    with pytest.raises(UnsmoothError, match="Did you mean 'mean_cosine'"):
        layer_chart([plain_scan()], "mean_cosin")
    with pytest.raises(UnsmoothError, match=r"where dirichlet_energy was measured \(residual\) but got 'attention'"):
        layer_chart([plain_scan()], "dirichlet_energy", "attention")


def test_figures_are_saved_for_every_metric_and_site(tmp_path: Path) -> None:
    written = save_figures([full_scan()], tmp_path / "new" / "figures")
    assert sorted(file.name for file in written if file.suffix == ".svg") == [
        "dirichlet_energy-residual.svg",
        "mean_cosine-absolute-true-attention.svg",
        "mean_cosine-absolute-true-residual.svg",
        "mean_cosine-attention.svg",
        "mean_cosine-residual.svg",
        "token_similarity-attention.svg",
        "token_similarity-residual.svg",
    ]
    assert sorted(written) == sorted((tmp_path / "new" / "figures").iterdir())
    for file in written:
        if file.suffix == ".png":
            content = file.read_bytes()
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert int.from_bytes(content[16:20], "big") > 1200  # pixels wide


def test_figure_names_do_not_collide_or_leave_the_folder(tmp_path: Path) -> None:
    rows = plain_scan().curve()
    names = ("../x(a=1)", "../x[a=1]")
    scan = replace(
        plain_scan(),
        rows=tuple(replace(row, metric=name) for name in names for row in rows),
        metrics=dict.fromkeys(names, METRICS["mean_cosine"]),
    )
    written = save_figures([scan], tmp_path)
    assert {file.name for file in written if file.suffix == ".svg"} == {"x-a-1-residual.svg", "x-a-1-residual-2.svg"}
    assert {file.parent for file in written} == {tmp_path}


def test_figures_need_a_folder_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnsmoothError, match="Expected a place to write"):
        save_figures([plain_scan()], tmp_path / "file")


def test_missing_extra_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(UnsmoothError, match=r'Try pip install "unsmooth\[report\]"\.$'):
        layer_chart([plain_scan()])


def test_import_is_cheap() -> None:
    heavy = "{'altair', 'vl_convert', 'jinja2', 'pandas', 'torch'}"
    code = f"import sys, unsmooth.report; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_plot_is_the_layer_chart() -> None:
    assert full_scan().plot("token_similarity").to_dict()["title"]["text"] == "token_similarity"


def test_notebook_shows_sentence_table_and_curve() -> None:
    html = full_scan()._repr_html_()
    assert "grow more alike with depth" in html
    assert "<th>layer 6</th>" in html
    assert "<td>0.52</td>" in html
    assert html.count("<svg") == 1


def test_notebook_escapes() -> None:
    html = notebook_html(hostile_scan())
    assert "<img" not in html
    assert "</script>" not in html
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in html
    assert "Interrupted" in html


def test_notebook_without_the_extra_is_the_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    html = notebook_html(plain_scan())
    assert "<table>" in html
    assert "<svg" not in html


def test_notebook_of_one_layer_and_of_none() -> None:
    scan = plain_scan()
    first = replace(scan, rows=tuple(row for row in scan.rows if row.layer == 0))
    assert "<th>layer 0</th></tr>" in notebook_html(first)
    assert "<table>" not in notebook_html(replace(scan, rows=()))
