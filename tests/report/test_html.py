"""The page as a file: whole, small, closed to the network, escaped."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.fakes import HOSTILE, METRICS, NAN, full_scan, hostile_scan, plain_scan, row
from unsmooth.errors import UnsmoothError
from unsmooth.report import write_report
from unsmooth.report.html import manifest_rows, report_html
from unsmooth.report.series import PALETTE, series_of
from unsmooth.report.shell import script_json
from unsmooth.scanning.result import Confound

pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")


def block(page: str, name: str) -> object:
    """A JSON block of the page, read as a strict parser would."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(found[1], parse_constant=refuse)


def without_runtime(page: Path) -> str:
    """The page less Vega, in whose code any string may stand."""
    return re.sub(r"<script>.*?window\.vegaEmbed=.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_page_is_small_and_written_for_everyone_to_read(reports: dict[str, Path]) -> None:
    page = reports["plain"]
    assert page.stat().st_size < 1_000_000
    assert stat.S_IMODE(page.stat().st_mode) & 0o400
    assert [file.suffix for file in page.parent.iterdir()] == [".html"] * len(reports)


def test_page_of_four_deep_scans_stays_under_two_megabytes() -> None:
    metrics = {f"metric_{index}": METRICS["mean_cosine"] for index in range(17)}
    sites = {f"site_{index}": "somewhere" for index in range(5)}
    cells = [row("mean_cosine", "residual", layer, 1 / 7) for layer in range(81)]
    rows = tuple(replace(cell, metric=name, site=site) for name in metrics for site in sites for cell in cells)
    deep = replace(plain_scan(), rows=rows, metrics=metrics, sites=sites)
    assert len(report_html([deep] * 4).encode()) < 2_000_000


def test_policy_forbids_the_network_and_foreign_scripts(reports: dict[str, Path]) -> None:
    page = without_runtime(reports["plain"])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe-eval" not in policy[1]
    assert not re.search(r"""<(script|img|iframe)[^>]*\ssrc=|<link[^>]*href=["']?http""", page)


def test_runtime_is_inlined_once_and_scripts_cannot_be_left(reports: dict[str, Path]) -> None:
    page = reports["hostile"].read_text(encoding="utf-8")
    assert page.count("window.vegaEmbed=") == 1
    assert page.count("<script") == page.count("</script>") == 4
    assert HOSTILE not in page
    assert "<img" not in without_runtime(reports["hostile"])


def test_data_is_valid_json_with_null_for_what_is_not_finite(reports: dict[str, Path]) -> None:
    data = block(reports["hostile"].read_text(encoding="utf-8"), "report-data")
    first = data["curves"][0]
    assert first["mean"][:4] == [0.3, None, 0.44, None]
    assert data["series"][0]["name"] == HOSTILE


def test_chart_of_the_page_is_valid_vega_lite(reports: dict[str, Path]) -> None:
    import altair

    spec = block(reports["plain"].read_text(encoding="utf-8"), "chart-spec")
    spec.pop("config")  # "currentColor" is CSS, which the schema does not know
    altair.LayerChart.from_dict(spec)


def test_differing_definitions_are_told_apart() -> None:
    other = replace(METRICS["mean_cosine"], definition="another definition", chance=0.25)
    scans = [plain_scan("one"), replace(plain_scan("two"), metrics={**METRICS, "mean_cosine": other})]
    data = block(report_html(scans), "report-data")
    groups = data["metrics"][0]["facts"][0]["groups"]
    assert [group["scans"] for group in groups] == [["one"], ["two"]]
    assert [level["label"] for level in data["metrics"][0]["chance"]] == ["chance 0 (one)", "chance 0.25 (two)"]


def test_confounds_are_named_or_said_to_be_absent(reports: dict[str, Path]) -> None:
    page = reports["plain"].read_text(encoding="utf-8")
    assert "<q>[CLS]</q>" in page
    assert "0.380" in page
    assert page.count("No massive token and no outlier dimension was found in any of 7 layers.") == 2
    assert "Not measured in this scan." in report_html([replace(plain_scan(), confounds=())])
    unnamed = replace(plain_scan(), confounds=(Confound(0, 0.9, 0.9, 0.1, 0.1),))
    assert 'class="confounds"' in report_html([unnamed])


def test_text_that_utf8_cannot_carry_is_replaced(tmp_path: Path) -> None:
    scan = replace(plain_scan("half \ud83d pair"), sentence="half \ud83d pair", notes=("bell \x07",))
    assert "half ? pair" in write_report([scan], tmp_path / "page.html").read_text(encoding="utf-8")


def test_unwritable_place_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file" / "page.html", tmp_path):
        with pytest.raises(UnsmoothError, match=r"Expected a place to write .* Try another folder\.$"):
            write_report([plain_scan()], place)
    assert os.listdir(tmp_path) == ["file"]


def test_failed_write_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_report([plain_scan()], page)
    assert page.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_names_are_made_unique_and_baselines_share_colours() -> None:
    same = replace(plain_scan("a"), baseline=plain_scan("a"))
    series = series_of([same, plain_scan("a"), plain_scan("")])
    assert [one.name for one in series] == ["a", "a (random weights)", "a (2)", "scan"]
    assert [one.colour for one in series] == [PALETTE[0], PALETTE[0], PALETTE[1], PALETTE[2]]
    with pytest.raises(UnsmoothError, match="at least one scan"):
        series_of([])


def test_json_in_a_script_escapes_all_that_html_or_javascript_reads() -> None:
    text = script_json({"a": "<!--</script>&\u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": "<!--</script>&\u2028\u2029"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json(NAN)


def test_manifest_is_flattened_with_its_depth() -> None:
    rows = manifest_rows({"a": {"b": [1, 2], "c": {}}, "d": [{"e": None}]})
    assert rows == [
        (0, "a", None),
        (1, "b", "1, 2"),
        (1, "c", "–"),
        (0, "d", None),
        (1, "0", None),
        (2, "e", "–"),
    ]


def test_unhealthy_scan_says_so() -> None:
    assert "NaN or Inf." in report_html([replace(full_scan(), healthy=False)])
    assert "NaN or Inf." not in report_html([hostile_scan()])
