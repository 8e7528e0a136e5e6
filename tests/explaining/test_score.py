"""Scores on numbers made up by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unsmooth.explaining.score import score

NAN, INF = math.nan, math.inf


def test_by_hand() -> None:
    # Rises: two of three right. Falls: one of two.
    found = score("r", "what it is", [0.5, 0.1, -0.2, -0.3, 0.4], [0.1, 0.2, 0.3, -0.1, -0.2])
    assert found is not None
    assert (found.rule, found.definition, found.layers) == ("r", "what it is", 5)
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.balanced_accuracy == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found.majority == pytest.approx(3 / 5)


def test_always_guessing_rise_is_worth_half() -> None:
    found = score("r", "", [1.0] * 4, [0.1, 0.1, 0.2, -0.1])
    assert found is not None
    assert found.accuracy == found.majority == 0.75
    assert found.balanced_accuracy == 0.5
    assert found.rank_correlation is None


def test_one_way_only_has_no_balance() -> None:
    found = score("r", "", [1.0, -1.0], [0.1, 0.2])
    assert found is not None
    assert found.balanced_accuracy is None
    assert (found.accuracy, found.majority) == (0.5, 1.0)


def test_rank_correlation_is_spearmans() -> None:
    predicted, measured = [0.3, -1.0, 2.0, 0.3, 5.0], [1.0, 0.5, 3.0, -2.0, 2.5]
    found = score("r", "", predicted, measured)
    assert found is not None

    def ranks(values: list[float]) -> list[float]:
        """Ties at their mean rank."""
        return [np.mean([sorted(values).index(v) + i for i in range(values.count(v))]) for v in values]

    assert found.rank_correlation == pytest.approx(np.corrcoef(ranks(predicted), ranks(measured))[0, 1])
    reversed_order = score("r", "", [1.0, 2.0, 3.0], [0.3, 0.2, 0.1])
    assert reversed_order is not None
    assert reversed_order.rank_correlation == pytest.approx(-1.0)
    for few in ([1.0, 2.0], [2.0, 1.0]):
        short = score("r", "", few, [0.1, 0.2])
        assert short is not None
        assert short.rank_correlation is None


def test_zero_is_a_fall() -> None:
    found = score("r", "", [0.0, 0.0], [0.0, -0.1])
    assert found is not None
    assert found.accuracy == 1.0
    assert found.majority == 1.0


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_what_is_not_a_number_is_left_out(broken: float) -> None:
    found = score("r", "", [1.0, broken, 1.0, -1.0], [0.1, 0.1, broken, -0.1])
    assert found is not None
    assert found.layers == 2
    assert found.accuracy == 1.0
    assert found == score("r", "", [1.0, -1.0], [0.1, -0.1])


def test_nothing_to_compare() -> None:
    assert score("r", "", [], []) is None
    assert score("r", "", [NAN], [0.1]) is None


def test_both_sides_must_have_one_number_a_layer() -> None:
    with pytest.raises(ValueError, match="shorter"):
        score("r", "", [1.0, 2.0], [0.1])
