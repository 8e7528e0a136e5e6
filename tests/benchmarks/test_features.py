"""The feature table says nothing that no test shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import features

ROOT = Path(features.__file__).parents[1]


@pytest.fixture(scope="module")
def facts() -> dict:
    return features.read_facts()


def test_every_named_test_exists(facts: dict) -> None:
    assert list(features.missing_tests(facts)) == []


def test_a_test_that_is_gone_is_noticed(facts: dict, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("def test_here() -> None: ...\ndef helper() -> None: ...\n")
    named = ["tests/test_one.py::test_here", "tests/test_one.py::helper", "tests/test_two.py::test_here"]
    found = list(features.missing_tests({"features": [{"tests": named}]}, tmp_path))
    assert found == named[1:]


def test_what_we_have_names_a_test_and_what_we_lack_does_not(facts: dict) -> None:
    for feature in facts["features"]:
        assert feature["ours"] in ("y", "p", "n"), feature["feature"]
        assert bool(feature["tests"]) == (feature["ours"] != "n"), feature["feature"]
        assert feature["ours"] != "p" or feature["note"], f"{feature['feature']}: which part?"


def test_every_row_has_a_mark_for_every_rival(facts: dict) -> None:
    for feature in facts["features"]:
        assert len(feature["rivals"]) == len(facts["rivals"]), feature["feature"]
        assert set(feature["rivals"]) <= set(features.MARKS), feature["feature"]
    counted = Counter(feature["feature"] for feature in facts["features"])
    assert max(counted.values()) == 1


def test_the_page_is_that_of_the_facts(facts: dict) -> None:
    assert (ROOT / "docs" / "features.md").read_text(encoding="utf-8") == features.page(facts)


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "unsmooth" / "py.typed").is_file()


def test_the_licence_is_permissive() -> None:
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
