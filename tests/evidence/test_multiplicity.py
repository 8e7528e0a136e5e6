"""Levels of intervals, and which verdicts hold for all claims together, against scipy."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from scipy import stats

from tests.evidence.test_core import Counting, record
from unsmooth.evidence import Entry
from unsmooth.evidence.interval import at_level, level, over_seeds, share
from unsmooth.evidence.multiplicity import LEAST, alpha_of, holm, multiplicity


def entry(values: tuple[float, ...], name: str = "counting") -> Entry:
    class Named(Counting):
        id: ClassVar[str] = name

    found: Any = record("full", values)
    return Entry(Named(), found, Named().judge(found.measured))


def test_intervals_at_another_level() -> None:
    values = [1.0, 2.0, 4.0]
    with at_level(0.99):
        found, part = over_seeds(values), share(3, 10)
    test = stats.ttest_1samp(values, 0.0).confidence_interval(0.99)
    exact = stats.binomtest(3, 10).proportion_ci(0.99, "exact")
    assert (found.low, found.high, part.low, part.high) == pytest.approx((*test, *exact))
    assert level() == 0.95


@pytest.mark.parametrize("values", [(1.0, 2.0, 1.5), (-3.0, -3.1, -2.7)])
def test_the_level_at_which_a_mean_is_no_longer_decided_is_the_p_value(values: tuple[float, ...]) -> None:
    assert alpha_of(entry(values)) == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, rel=1e-4)


def test_what_holds_at_every_level_has_the_least() -> None:
    assert alpha_of(entry((1.0, 1.0, 1.0))) == LEAST


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.02, "c": 0.03}) == {"a", "b", "c"}  # 0.05/3, 0.05/2, 0.05
    assert holm({"a": 0.02, "b": 0.01, "c": 0.06}) == {"a", "b"}
    assert holm({"a": 0.02, "b": 0.021, "c": 0.0001}) == {"a", "b", "c"}
    assert holm({"a": 0.018, "b": 0.018, "c": 0.018}) == set()
    assert holm({}) == set()


def test_counts_of_a_ledger() -> None:
    sure, unsure, undecided = (1.0, 1.001, 1.0), (1.0, 2.0, 1.9), (-1.0, 2.0, 0.5)
    entries = [entry(sure, "sure"), entry(unsure, "unsure"), entry(undecided, "undecided"), Entry(Counting())]
    found = multiplicity(entries)
    assert (found.intervals, found.deciding, found.decided) == (3, 3, 2)
    assert found.expected_false == pytest.approx(0.15)
    assert (found.hold, found.fall) == (("sure", "unsure"), ())
    several = [*entries, *(entry(unsure, f"unsure {place}") for place in range(3))]
    assert multiplicity(several).hold == ("sure",)
    assert "3 intervals, 3 of which" in str(found)
