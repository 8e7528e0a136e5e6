"""Skills on numbers made up by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.report.fake_explanations import layer_finding
from unsmooth.explaining.result import Skill
from unsmooth.explaining.score import (
    PERSISTENCE,
    VERDICTS,
    able_tiers,
    beats_persistence,
    best_tier,
    persisting,
    skill,
    skills,
)

NAN, INF = math.nan, math.inf


def test_by_hand() -> None:
    # Rises: two of three right. Falls: one of two. The mean is 0.06, so Σ(m − m̄)² is 0.172; Σ(m − p)² is 0.82.
    found = skill("T2", [0.5, 0.1, -0.2, -0.3, 0.4], [0.1, 0.2, 0.3, -0.1, -0.2])
    assert found is not None
    assert (found.name, found.layers) == ("T2", 5)
    assert "not its attention" in found.knows
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.balanced_accuracy == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found.explained == pytest.approx(1 - 0.82 / 0.172)


def test_always_guessing_rise_is_worth_half() -> None:
    found = skill("T0", [1.0] * 4, [0.1, 0.1, 0.2, -0.1])
    assert found is not None
    assert (found.accuracy, found.balanced_accuracy) == (0.75, 0.5)


def test_one_way_only_has_no_balance_and_one_layer_no_variance() -> None:
    found = skill("T0", [1.0, -1.0], [0.1, 0.2])
    assert found is not None
    assert (found.balanced_accuracy, found.accuracy) == (None, 0.5)
    single = skill("T0", [1.0], [0.1])
    assert single is not None
    assert single.explained is None


def test_zero_is_a_fall() -> None:
    found = skill("T0", [0.0, 0.0], [0.0, -0.1])
    assert found is not None
    assert found.accuracy == 1.0


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_what_is_not_a_number_is_left_out(broken: float) -> None:
    found = skill("T1", [1.0, broken, 1.0, -1.0], [0.1, 0.1, broken, -0.1])
    assert found is not None
    assert found.layers == 2
    assert found == skill("T1", [1.0, -1.0], [0.1, -0.1])


def test_nothing_to_compare() -> None:
    assert skill("T1", [], []) is None
    assert skill("T1", [NAN], [0.1]) is None
    with pytest.raises(ValueError, match="shorter"):
        skill("T1", [1.0, 2.0], [0.1])


def test_persistence_repeats_the_layer_before() -> None:
    assert persisting([0.5, -0.25, 1.0]) == [0.0, 0.5, -0.25]


def made(name: str, balanced: float | None, accuracy: float, explained: float | None = 0.0) -> Skill:
    return Skill(name, "", 6, explained, accuracy, balanced)


def test_the_best_tier_beats_persistence_and_is_not_the_block_itself() -> None:
    other = made(PERSISTENCE, 0.6, 0.6)
    found = [
        made("T0", 0.5, 0.5),
        made("T1", 0.8, 0.7, 0.1),
        made("T2", 0.8, 0.7, 0.3),
        made("T4", 1.0, 1.0, 1.0),
        other,
    ]
    assert [one.name for one in able_tiers(found)] == ["T2", "T1"]
    assert best_tier(found) == found[2]
    assert best_tier([found[0], other]) is None
    assert best_tier([]) is None


def test_of_equals_the_one_that_knows_less() -> None:
    found = [made("T1", 0.8, 0.7), made("T3", 0.8, 0.7), made(PERSISTENCE, 0.6, 0.6)]
    best = best_tier(found)
    assert best is not None
    assert best.name == "T1"


@pytest.mark.parametrize(
    ("balanced", "accuracy", "other", "beats"),
    [
        (0.7, 0.7, (0.6, 0.6), True),
        (0.7, 0.5, (0.6, 0.6), False),  # better balanced, and wrong more often
        (0.6, 0.9, (0.6, 0.6), False),
        (0.5, 0.9, (0.4, 0.6), False),  # a constant guess
        (None, 0.9, (None, 0.8), True),
        (None, 0.8, (None, 0.8), False),
    ],
)
def test_beating_persistence(balanced: float | None, accuracy: float, other: tuple[float, float], beats: bool) -> None:
    one = made("T1", balanced, accuracy)
    assert beats_persistence(one, [one, made(PERSISTENCE, *other)]) is beats
    assert not beats_persistence(one, [one])


def test_verdicts_tell_directions_alone() -> None:
    layers = [layer_finding(layer) for layer in range(1, 7)]
    found = {one.name: one for one in skills(layers)}
    verdicts = found[VERDICTS]
    assert (verdicts.explained, verdicts.accuracy) == (None, 1.0)  # odd layers smooth and rise
    assert found[PERSISTENCE].accuracy == 0.0  # each layer turns
    unknown = [replace(one, rest_modulus=None) for one in layers]
    assert VERDICTS not in {one.name for one in skills(unknown)}
    assert skills([replace(one, logit_change=None) for one in layers]) == ()
