from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.remedy_matrix import Notes, as_json, read, taken_over
from benchmarks.remedy_matrix_page import _general, page

from tests.remedies.harness import Case, Outcome, cases
from tests.remedies.hosts import HOSTS
from tests.remedies.settings import SETTINGS

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks/results/remedy_matrix.json", ROOT / "docs/remedies/matrix.md"


def test_the_matrix_on_record_is_of_the_remedies_and_hosts_there_are() -> None:
    found = {(entry["remedy"], entry["setting"], entry["host"]) for entry in read(RESULTS)["cases"]}
    assert found == {(case.remedy, case.variant, case.host.name) for case in cases()}


def test_nothing_on_record_fails() -> None:
    found = read(RESULTS)
    assert not [entry for entry in [*found["cases"], *found["pairs"]] if "fail" in entry["outcomes"].values()]
    for entry in found["cases"]:
        assert (entry["outcomes"]["applies"] == "impossible") == (
            entry["host"] in SETTINGS[entry["remedy"]][entry["setting"]].refused_by
        )


def test_the_page_is_what_the_record_says() -> None:
    assert page(read(RESULTS)) == PAGE.read_text(encoding="utf-8")


def small() -> dict:
    entry = {
        "remedy": "deescalate",
        "setting": "attention",
        "host": "vit",
        "outcomes": {"applies": "pass", "undo": "fail", "padding": "not applicable"},
        "reasons": {"undo": 'says "no"'},
        "at": "abc1234",
    }
    return {
        "what": "-",
        "versions": {"torch": "2"},
        "seconds": 3,
        "remedies": {"deescalate": {"paper": "-", "neutral": "tau=0.0", "causal": "prefix mean", "folds": "no"}},
        "checks": {"undo": "It is undone.", "padding": "Padding."},
        "cases": [entry],
        "pairs": [{"below": "rezero", **entry, "outcomes": {"applies": "impossible"}, "reasons": {"applies": "x': y"}}],
    }


def test_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    path.write_text(as_json(small()), encoding="utf-8")
    again = read(path)
    assert {key: again[key] for key in small()} == small()
    assert json.loads(path.read_text())["cases"][0]["outcomes"] == "pfn"


def test_a_failure_is_told_with_its_reason() -> None:
    text = page(small())
    assert '- deescalate (attention) on vit, undo: says "no"' in text
    assert "| vit | ✗ 0/1 | · |" in text
    assert "| rezero | deescalate | vit | y |" in text


def test_hosts_measured_anew_take_their_place_and_the_rest_stays() -> None:
    old, new = small(), small()
    variant = next(iter(SETTINGS["deescalate"]))
    vit = {**old["cases"][0], "setting": variant}
    bert, pair = {**vit, "host": "bert"}, old["pairs"][0]
    gone = {**vit, "setting": "that no remedy has"}
    old.update(cases=[bert, vit, gone], pairs=[{**pair, "host": "bert"}, pair])
    old["remedies"] = {name: {"paper": "old"} for name in SETTINGS}
    new.update(cases=[{**vit, "at": "def5678"}], pairs=[{**pair, "at": "def5678"}])
    found = taken_over(old, new, list(SETTINGS), ["vit"])
    assert [(row["host"], row["at"]) for row in found["cases"]] == [("bert", "abc1234"), ("vit", "def5678")]
    assert [(row["host"], row["at"]) for row in found["pairs"]] == [("bert", "abc1234"), ("vit", "def5678")]
    assert found["seconds"] == 6
    assert list(found["remedies"]) == sorted(SETTINGS)
    text = page({**found, "remedies": new["remedies"]})
    assert "measured at commit abc1234 (2 on bert); def5678 (2 on vit)" in text
    only = taken_over(old, {**new, "cases": [], "pairs": []}, ["rezero"], ["vit"])
    assert [row["host"] for row in only["cases"]] == ["bert", "vit"], "deescalate was not asked for"
    assert len(only["pairs"]) == 2, "a pair is due where both its remedies are"


def test_reasons_are_the_same_for_every_family() -> None:
    assert _general("a form for a decoder (gpt2) but", "gpt2") == "a form for a decoder but"


class OneByOne:
    """In place of a pool of processes."""

    def map(self, run: Any, tasks: Sequence[Any], chunksize: int) -> Iterator[Any]:
        return map(run, tasks)


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    tasks, ran = [Case("deescalate", variant, HOSTS[0]) for variant in ("a", "b", "c")], []

    def run(case: Case) -> dict[str, Outcome]:
        ran.append(case.variant)
        if ran == ["a", "b"]:
            raise KeyboardInterrupt
        return {"undo": Outcome("fail", f"in {case.variant}")}

    with pytest.raises(KeyboardInterrupt):
        Notes(tmp_path / "notes").all_of(tasks, run, OneByOne())
    found = Notes(tmp_path / "notes").all_of(tasks, run, OneByOne())
    assert ran == ["a", "b", "b", "c"]
    assert [one["undo"].reason for one in found] == ["in a", "in b", "in c"]


def test_notes_of_another_commit_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, ran = [Case("deescalate", "a", HOSTS[0])], []

    def run(case: Case) -> dict[str, Outcome]:
        ran.append(case.variant)
        return {"undo": Outcome("pass", "")}

    for at in ("abc1234", "abc1234", "def5678"):
        monkeypatch.setattr("benchmarks.remedy_matrix._at", lambda at=at: at)
        Notes(tmp_path / "notes").all_of(tasks, run, OneByOne())
    assert ran == ["a", "a"]
