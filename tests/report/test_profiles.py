"""Profiles as maps: every finite cell is drawn, and a page has room for some."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.fakes import plain_scan
from unsmooth.report import profile_chart, profiles, save_figures
from unsmooth.report.html import report_html
from unsmooth.scanning.profile import Profile, ProfileLine

pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")

MATRIX = Profile(
    "linear_cka",
    "residual",
    "layer",
    "linear CKA of two layers",
    (ProfileLine(0, (0.0, 1.0), (1.0, math.nan), 3), ProfileLine(1, (0.0, 1.0), (0.25, 1.0), 3)),
)
HOSTILE = replace(MATRIX, metric="<script>alert(1)</script>", axis='"><img src=x>', meaning="a & b", stack="text")


def test_every_finite_cell_is_drawn() -> None:
    spec = profile_chart(MATRIX).to_dict()
    cells = [(row["layer"], row["at"], row["value"]) for row in spec["data"]["values"]]
    assert cells == [(0, 0.0, 1.0), (1, 0.0, 0.25), (1, 1.0, 1.0)]
    assert spec["width"] == spec["height"]
    assert spec["title"]["subtitle"] == ["linear CKA of two layers; residual"]


def test_a_page_shows_them_with_words_for_who_cannot_see() -> None:
    page = report_html([replace(plain_scan("one"), profiles=(MATRIX,))])
    assert 'aria-label="linear_cka of one: linear CKA of two layers, by layer and layer; residual"' in page
    assert len(re.findall(r'<div class="profile"', page)) == 1
    assert "Behind the curves" not in report_html([plain_scan()])


def test_names_cannot_smuggle_anything_in() -> None:
    page = report_html([replace(plain_scan(), profiles=(HOSTILE,))])
    body = page[page.index("Behind the curves") : page.index("confounds-heading")]
    assert "<script" not in body
    assert "<img" not in body


def test_what_has_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "_MOST", 9_000)
    page = report_html([replace(plain_scan(), profiles=(MATRIX,) * 5)])
    shown = len(re.findall(r'<div class="profile"', page))
    assert 0 < shown < 5
    assert f"{5 - shown} more are in the scans' files." in page


def test_figures_have_a_file_each(tmp_path: Path) -> None:
    scans = [replace(plain_scan(name), profiles=(MATRIX,)) for name in ("one", "two")]
    names = [path.name for path in save_figures(scans, tmp_path) if "profile" in path.name]
    assert names == ["linear_cka-residual-profile-one.svg", "linear_cka-residual-profile-two.svg"]
    assert (tmp_path / names[0]).read_text().startswith("<svg")
