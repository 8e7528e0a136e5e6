"""The documentation of the evidence: every number comes from the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.evidence_corrections import FIRST_EDITION, WHY
from benchmarks.markers import replaced

from benchmarks import evidence_page
from tests.report.evidence.fake_entries import FakeClaim, OtherClaim, fake_store, record, trained
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import CLAIMS, ledger

pytest.importorskip("altair", reason="the report extra is not installed")
pytest.importorskip("vl_convert", reason="the report extra is not installed")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two claims, one of them measured."""
    store = fake_store(tmp_path / "evidence")
    store.write_claim(record(FakeClaim, measured={"gap": [1.0, 1.1, 1.2]}))
    store.write_study("steering", "full", [trained("plain", 0), trained("plain", 1)])
    (tmp_path / "README.md").write_text(f"# Before\n{evidence_page.BEGIN}\nold\n{evidence_page.END}\nafter\n")
    public = tmp_path / "public.json"
    public.write_text(json.dumps([{"what": "another ViT", "accuracy": 0.6975, "source": "its README"}]))
    for name, value in {
        "ROOT": tmp_path,
        "DOCS": tmp_path / "docs" / "evidence",
        "PUBLIC": public,
        "TRAINED_MODELS": tmp_path / "none",
    }.items():
        monkeypatch.setattr(evidence_page, name, value)
    monkeypatch.setattr(CLAIMS, "_items", {one.id: one for one in (FakeClaim(), OtherClaim())})
    monkeypatch.setattr("sys.argv", ["evidence_page", "--results", str(tmp_path / "evidence")])
    evidence_page.main()
    return tmp_path


def test_readme_has_counts_between_its_markers(written: Path) -> None:
    lines = (written / "README.md").read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("# Before", evidence_page.BEGIN, evidence_page.END, "after")
    assert lines[2:-2] == ["2 claims: 1 confirmed, 1 not run."]
    table = "| wording | confirmed | not run | all |\n| --- | --- | --- | --- |\n| verbatim | 1 | 0 | 1 |\n"
    assert table in (written / "docs" / "evidence" / "README.md").read_text()


def test_page_has_rule_findings_figure_studies_and_public_figures(written: Path) -> None:
    folder = written / "docs" / "evidence"
    page = (folder / "README.md").read_text()
    for part in (
        "### 1 made-up",
        "> Made-up numbers are larger than 0.\n>\n> *P1 v9, nowhere; verbatim*",
        "- for it: the interval lies above 0\n- against it: it lies below 0",
        "| 1 | [made-up](#1-made-up) | verbatim, P1 v9 | **confirmed** | 1.1 [0.852, 1.35]: the gap |",
        "[0.852, 1.35]: the gap |",
        "The ledger looks at 2 intervals, 1 of which speak for or against a claim",
        "| P2 v2 |",
        "Verdict: **confirmed**. The gap is 1.1, a < b.",
        "| a single \\|number\\| | 4 (no interval from 1) | 1 | reported |",
        "![made-up](made-up.svg)",
        "gpu minutes 4.0",
        "Verdict: not run.",
        "### made-up-study",
        "| another ViT | 69.8 | its README |",
        "variant plain, scale full | 55 [−8.53, 119] | this page |",
    ):
        assert part in page, part
    assert (folder / "made-up.svg").read_text().startswith("<svg")
    assert not (folder / "another.svg").exists()


def test_what_changed_is_told_of_claims_that_are_there(written: Path) -> None:
    page = (written / "docs" / "evidence" / "what-we-got-wrong.md").read_text()
    assert page.startswith("# What we got wrong before")
    assert "0 verdicts changed." in page  # neither claim was in the first edition


def test_every_claim_of_the_first_edition_is_accounted_for() -> None:
    assert set(FIRST_EDITION) == set(WHY)
    assert set(FIRST_EDITION) <= {entry.claim.id for entry in ledger(evidence_page.ROOT / "evidence")}


def test_without_markers_nothing_is_guessed() -> None:
    for text in ("none", f"{evidence_page.BEGIN}{evidence_page.END}" * 2):
        with pytest.raises(UnsmoothError, match="once in README"):
            replaced(text, evidence_page.BEGIN, evidence_page.END, "new")


def test_without_a_list_there_are_no_public_figures(tmp_path: Path) -> None:
    assert evidence_page.accuracy_part([], tmp_path / "absent.json") == ""
