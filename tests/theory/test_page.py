"""The page is made from the registry, and the one in the repository is of the same cases."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import theory_catalogue
from tests.theory.case import Case, Comparison
from tests.theory.cases import CASES

ROOT = Path(__file__).parents[2]
QUICK = ("spectrum", "no-weights", "gap-is-no-one-step-bound")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    cases = {name: CASES[name] for name in QUICK}
    monkeypatch.setattr(theory_catalogue, "CASES", cases)
    return cases


def run(folder: Path) -> tuple[int, str, dict[str, object]]:
    code = theory_catalogue.main(["--page", str(folder / "theory.md"), "--out", str(folder / "theory.json")])
    return code, (folder / "theory.md").read_text("utf-8"), json.loads((folder / "theory.json").read_text("utf-8"))


def test_page_and_record(few: dict[str, Case], tmp_path: Path) -> None:
    code, page, record = run(tmp_path)
    assert code == 0
    assert "3 of 3 cases hold" in page
    assert all(f"| `{name}` | " in page for name in QUICK)
    assert record["holding"] == 3
    found = {case["name"]: case for case in record["cases"]}  # type: ignore[attr-defined]
    assert set(found) == set(QUICK)
    assert found["no-weights"]["predicted"] == found["no-weights"]["reached"] == "no collapse"
    assert all(case["holds"] and case["numbers"] for case in found.values())


def test_a_case_that_does_not_hold_is_shown(few: dict[str, Case], tmp_path: Path) -> None:
    few["spectrum"] = replace(few["spectrum"], check=lambda setup, run: [Comparison("seven", 7.0, "<", 1.0)])
    code, page, record = run(tmp_path)
    assert code == 1
    assert "2 of 3 cases hold" in page
    assert "not so: seven 7 < 1" in page
    assert record["holding"] == 2


def test_bars_do_not_break_the_table(few: dict[str, Case], tmp_path: Path) -> None:
    _, page, _ = run(tmp_path)
    rows = [line.replace("\\|", "") for line in page.splitlines() if line.startswith("| `")]
    assert [row.count("|") for row in rows] == [7, 7, 7]


def test_what_is_in_the_repository_is_complete() -> None:
    page = (ROOT / "docs" / "theory.md").read_text("utf-8")
    record = json.loads((ROOT / "benchmarks" / "results" / "theory_catalogue.json").read_text("utf-8"))
    assert {case["name"] for case in record["cases"]} == set(CASES)
    assert all(case["holds"] for case in record["cases"])
    for name, case in CASES.items():
        assert f"| `{name}` | {case.description.replace('|', chr(92) + '|')} |" in page
