"""The documentation of the evidence: every number comes from the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.markers import replaced

from benchmarks import evidence_page
from tests.report.evidence.fake_entries import FakeClaim, OtherClaim, fake_store, record, trained
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import CLAIMS

pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two claims, one of them measured."""
    store = fake_store(tmp_path / "evidence")
    store.write_claim(record(FakeClaim, measured={"gap": [1.0, 1.1, 1.2]}))
    store.write_study("steering", "paper", [trained("plain", 0), trained("plain", 1)])
    (tmp_path / "README.md").write_text(f"# Before\n{evidence_page.BEGIN}\nold\n{evidence_page.END}\nafter\n")
    public = tmp_path / "public.json"
    public.write_text(json.dumps([{"what": "another ViT", "accuracy": 0.6975, "source": "its README"}]))
    for name, value in {"ROOT": tmp_path, "DOCS": tmp_path / "docs" / "evidence", "PUBLIC": public}.items():
        monkeypatch.setattr(evidence_page, name, value)
    monkeypatch.setattr(CLAIMS, "_items", {one.id: one for one in (FakeClaim(), OtherClaim())})
    monkeypatch.setattr("sys.argv", ["evidence_page", "--results", str(tmp_path / "evidence")])
    evidence_page.main()
    return tmp_path


def test_readme_has_a_short_ledger_between_its_markers(written: Path) -> None:
    lines = (written / "README.md").read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("# Before", evidence_page.BEGIN, evidence_page.END, "after")
    assert lines[2] == "2 claims: 1 confirmed, 0 refuted, 0 undecided, 1 not run."
    assert lines[6] == (
        "| [made-up](docs/evidence/README.md#1-made-up) (P1) | Made-up numbers are larger than 0. | **confirmed** "
        "| 1.1 [0.852, 1.35] |"
    )
    assert "old" not in lines


def test_page_has_rule_findings_figure_studies_and_public_figures(written: Path) -> None:
    folder = written / "docs" / "evidence"
    page = (folder / "README.md").read_text()
    for part in (
        "### 1 made-up",
        "- confirmed if the interval lies above 0\n- refuted if it lies below 0",
        "Verdict: **confirmed**. The gap is 1.1, a < b.",
        "| a single \\|number\\| | 4 (no interval from 1) | 1 | reported |",
        "![made-up](made-up.svg)",
        "gpu minutes 4.0",
        "Verdict: not run.",
        "### made-up-study",
        "| another ViT | 69.8 | its README |",
        "variant plain, scale paper | 55 [−8.53, 119] | this page |",
    ):
        assert part in page, part
    assert (folder / "made-up.svg").read_text().startswith("<svg")
    assert not (folder / "another.svg").exists()


def test_without_markers_nothing_is_guessed() -> None:
    for text in ("none", f"{evidence_page.BEGIN}{evidence_page.END}" * 2):
        with pytest.raises(UnsmoothError, match="once in README"):
            replaced(text, evidence_page.BEGIN, evidence_page.END, "new")


def test_without_a_list_there_are_no_public_figures(tmp_path: Path) -> None:
    assert evidence_page.accuracy_part([], tmp_path / "absent.json") == ""
