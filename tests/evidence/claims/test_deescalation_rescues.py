"""The rule about de-escalation, on made-up accuracies and cosines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from unsmooth.evidence import CLAIMS

CLAIM = CLAIMS["deescalation-rescues"]
SEEDS = ("0", "1", "2")
Values = Sequence[float]


def around(value: float) -> Values:
    return (value - 0.005, value, value + 0.005)


def measured(accuracies: dict[str, Values], cosines: dict[str, Values]) -> dict[str, Any]:
    """Variant to accuracies by seed; kind to cosines at the last layer after training."""
    variants = {
        name: {
            "depth": int(name.rpartition("-")[2]),
            "rate": 3e-4,
            "stopped": 0,
            "accuracy": dict(zip(SEEDS, values, strict=True)),
            "before training": {seed: [0.2, 0.5] for seed in SEEDS},
            "after training": {
                seed: [0.2, value]
                for seed, value in zip(SEEDS, cosines.get(name.rpartition("-")[0], (0.6, 0.6, 0.6)), strict=True)
            },
        }
        for name, values in accuracies.items()
    }
    return {"chance": 0.1, "variants": variants, "probes": {name: {"0.0003": 0.4} for name in variants}}


APART = {"post": (1.0, 0.99, 1.0), "deescalate": (0.4, 0.5, 0.45)}
RESCUED = {"post-24": around(0.30), "pre-24": around(0.60), "deescalate-24": around(0.58)}
RESCUED_DEEPER = {"post-40": around(0.10), "pre-40": around(0.60), "deescalate-40": around(0.50)}


def test_confirmed_where_it_trains_and_tokens_differ() -> None:
    judgement = CLAIM.judge(measured(RESCUED | RESCUED_DEEPER, APART))
    assert judgement.verdict == "confirmed"
    assert judgement.findings[0].interval.value == pytest.approx(0.28)
    assert [one.verdict for one in judgement.findings].count("confirmed") == 6


def test_paired_by_seed() -> None:
    """Seeds differ by more than the gain, which is the same in each."""
    swinging = {"post-24": (0.3, 0.4, 0.5), "pre-24": (0.4, 0.5, 0.6), "deescalate-24": (0.35, 0.45, 0.55)}
    assert CLAIM.judge(measured(swinging, APART)).verdict == "confirmed"


def test_a_gain_of_less_than_two_points_refutes() -> None:
    accuracies = RESCUED | {"post-24": around(0.57)}
    assert CLAIM.judge(measured(accuracies, APART)).verdict == "refuted"
    assert CLAIM.judge(measured(accuracies | {"post-24": (0.50, 0.57, 0.60)}, APART)).verdict == "undecided"


def test_a_gain_that_leaves_it_below_half_of_pre_norm_refutes() -> None:
    assert CLAIM.judge(measured(RESCUED | {"deescalate-24": around(0.34)}, APART)).verdict == "refuted"
    assert CLAIM.judge(measured(RESCUED | {"deescalate-24": (0.33, 0.36, 0.39)}, APART)).verdict == "undecided"
    assert CLAIM.judge(measured(RESCUED | {"deescalate-24": around(0.37)}, APART)).verdict == "confirmed"


def test_tokens_that_are_more_alike_refute() -> None:
    assert CLAIM.judge(measured(RESCUED, {"post": (0.4, 0.5, 0.45), "deescalate": (0.9,) * 3})).verdict == "refuted"
    assert CLAIM.judge(measured(RESCUED, {"post": (0.4, 0.5, 0.45), "deescalate": (0.45,) * 3})).verdict == "undecided"


def test_both_depths_have_to_hold() -> None:
    assert CLAIM.judge(measured(RESCUED | RESCUED_DEEPER | {"deescalate-40": around(0.11)}, APART)).verdict == "refuted"
    assert (
        CLAIM.judge(measured(RESCUED | {"post-40": around(0.1), "pre-40": around(0.6)}, APART)).verdict == "confirmed"
    )


def test_rivals_are_ranked_and_only_reported() -> None:
    judgement = CLAIM.judge(measured(RESCUED | {"b2t-24": around(0.65), "rezero-24": around(0.50)}, APART))
    assert judgement.verdict == "confirmed"
    assert "24 blocks: b2t 0.650, pre 0.600, deescalate 0.580, rezero 0.500, post 0.300." in judgement.words
    found = {one.what: one for one in judgement.findings}
    assert found["accuracy, de-escalation minus b2t, 24 blocks"].interval.value == pytest.approx(-0.07)
    assert found["accuracy, de-escalation minus b2t, 24 blocks"].verdict is None
    assert not any("deepnorm" in what for what in found)


def test_draws_the_best_first() -> None:
    accuracy, cosine = CLAIM.figure(measured(RESCUED | {"rezero-24": around(0.50)}, APART)).panels
    assert list(accuracy.series[0].x) == ["pre", "deescalate", "rezero", "post"]
    assert accuracy.series[0].y == pytest.approx([0.6, 0.58, 0.5, 0.3])
    assert {series.name: series.y[-1] for series in cosine.series}["deescalate-24"] == pytest.approx(0.45)
