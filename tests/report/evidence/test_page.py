"""The page of the evidence as a file: whole, closed to the network, escaped, with all that a verdict rests on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.evidence.fake_entries import VERDICTS, FakeClaim
from tests.report.fakes import HOSTILE
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import Entry, Store
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.report.evidence import figure, words
from unsmooth.report.evidence.figures import panel_svg
from unsmooth.report.evidence.studies import studies_of, variant_cells

pytest.importorskip("altair", reason="the report extra is not installed")
convert = pytest.importorskip("vl_convert", reason="the report extra is not installed")


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@pytest.fixture
def page(reports: dict[str, Path]) -> str:
    return reports["ledger"].read_text(encoding="utf-8")


def test_a_long_title_begins_where_the_picture_does() -> None:
    panel = Panel("mean cosine at the start, depth=12 norm=pre (1", "layer", "y", [Series("plain", [0, 1], [0.1, 0.2])])
    svg = panel_svg(Figure("", [panel]), panel)
    assert svg is not None
    inner, of_title = (
        float(re.search(pattern, svg)[1])  # type: ignore[index]
        for pattern in (
            r'miterlimit="10" transform="translate\(([-\d.]+),',
            r'role-title"><g transform="translate\(([-\d.]+),',
        )
    )
    assert inner + of_title < 10  # pixels from the left; over the plot alone it would begin at about 50


def test_policy_forbids_the_network_and_every_script(reports: dict[str, Path]) -> None:
    for path in reports.values():
        page = path.read_text(encoding="utf-8")
        assert "default-src &#39;none&#39;; script-src ;" in page
        assert not re.search(r"""<(script|img|image|iframe|object|use)\b|<link[^>]*href=["']?http""", page)


def test_ledger_tells_verdict_effect_wording_paper_and_scale_by_section(page: str) -> None:
    body = re.search(r'<table class="ledger">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert body
    rows = [text(row) for row in body[1].split("</tr>")[:-1]]
    assert rows[0] == "trained models"
    assert rows[1] == (
        "1 made-up Made-up numbers are larger than 0. ✓ confirmed 1.1 [0.852, 1.35] the gap verbatim P1 v9 full"
    )
    rest = re.search(r">training</th>(.*?)</table>", page, re.DOTALL)
    assert rest
    others = [text(row) for row in rest[1].split("</tr>")[1:-1]]
    assert others[0].endswith("− not supported here −1 [−1.25, −0.752] the gap reconstructed P2 small")
    assert "? undecided" in others[1]
    assert others[2].endswith("– not run – reconstructed P2 –")
    assert "4 claims: 1 confirmed, 1 not supported here, 1 undecided, 1 not run." in page
    assert "1 of these verdicts rests on runs below scale full" in page


def test_a_claim_has_its_rule_findings_picture_and_provenance(page: str) -> None:
    section = page[page.index('id="made-up"') : page.index('id="another"')]
    assert section.count("<svg") == 3
    said = text(section)
    assert "For it the interval lies above 0 Against it it lies below 0" in said
    assert "Read here as The mean of made-up numbers is above 0. Differs from the sentence Three numbers." in said
    assert "P1 v9, nowhere; verbatim" in said
    assert "Would decide" not in said
    assert "the gap 1.1 [0.852, 1.35] 3 + for" in said
    assert "a single |number| 4 (no interval from 1) 1 reported" in said
    assert "Commit 0123456789" in said
    assert "GPU minutes 4.0" in said  # four runs of two minutes, two at a time


def test_changed_rules_and_small_scales_are_told(page: str) -> None:
    said = text(page[page.index('id="another"') : page.index('id="third"')])
    assert "The rule reads otherwise today than when the numbers were taken." in said
    assert "against it: it was otherwise." in said
    assert "Measured at scale small" in said
    assert "The rule reads otherwise" not in page[page.index('id="third"') :]


def test_pictures_can_be_read_as_numbers(page: str) -> None:
    tables = re.findall(r"<details.*?</details>", page, re.DOTALL)
    first = text(tables[0])
    assert first.startswith("Numbers By layer layer plain plain, predicted sharpened 0 0.1 [0.05, 0.15] 0.1 0.1 1 0.3")
    assert "3 0.45 [0.4, 0.5] 0.5 0.01" in first
    assert "2 0.4 0.42 –" in first


def test_studies_tell_runs_accuracy_and_minutes(page: str, store: Store, entries: list[Entry]) -> None:
    said = text(page[page.index('id="studies-heading"') :])
    assert "made-up-study Scale full, data cifar100, Made-up GPU, commit 0123456789. GPU minutes: 4.0." in said
    assert "steep 0, 1 1 finished, 1 stopped 0.5 1 12,345" in said
    (study,) = [one for one in studies_of(entries, store) if one.name == "made-up-study"]
    assert variant_cells(study.variants["plain"])["accuracy"] == "0.55 [−0.0853, 1.19]"
    assert study.gpu_minutes == pytest.approx(4.0)


def test_hostile_text_is_escaped(reports: dict[str, Path]) -> None:
    page = reports["hostile"].read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "&lt;/script&gt;" in page
    assert "Nothing: no numbers to draw." in page


def test_nothing_measured_still_has_a_page(reports: dict[str, Path]) -> None:
    said = text(reports["empty"].read_text(encoding="utf-8"))
    assert "1 claim: 1 not run." in said
    assert "Not run yet: unsmooth evidence run fourth" in said
    assert "No training run is kept here." in said


def test_figure_of_a_claim_is_a_chart_with_all_its_panels(entries: list[Entry]) -> None:
    spec = figure(entries[0]).to_dict()
    assert [panel["title"]["text"] for panel in spec["concat"]] == [["By layer"], ["By variant"], ["By long names"]]
    svg = convert.vegalite_to_svg(spec)
    assert "plain, predicted" in svg
    logs = figure(entries[1]).to_dict()["concat"][0]["layer"]
    assert {layer["encoding"]["y"]["scale"]["type"] for layer in logs} == {"log"}
    with pytest.raises(UnsmoothError, match="Expected a claim that was measured but got fourth"):
        figure(entries[3])


def test_standing_and_paper(entries: list[Entry]) -> None:
    assert [entry.verdict for entry in entries] == VERDICTS
    assert [words.standing(entry) for entry in entries] == ["confirmed", "not supported here", "undecided", "not run"]
    assert [words.paper(entry) for entry in entries] == ["P1 v9", "P2", "P2", "P2"]
    assert words.cautions(Entry(FakeClaim())) == words.provenance(Entry(FakeClaim())) == []


def test_what_a_verdict_does_not_reach_is_told_beside_it_once_there_is_one(
    entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeClaim, "beyond", "Of made-up numbers alone.", raising=False)
    assert "Of made-up numbers alone." in words.cautions(entries[0])
    assert words.cautions(Entry(FakeClaim())) == []
    assert entries[0].to_json()["beyond"] == "Of made-up numbers alone."
