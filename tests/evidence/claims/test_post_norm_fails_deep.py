"""The rule about deep post-norm models, on made-up accuracies and cosines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from unsmooth.evidence import CLAIMS

CLAIM = CLAIMS["post-norm-fails-deep"]
SEEDS = ("0", "1", "2")
DEPTHS = {"12": 12, "24": 24, "40": 40}


def measured(
    post: dict[str, Sequence[float]],
    pre: Sequence[float] = (0.59, 0.60, 0.61),
    before: Sequence[float] = (0.99, 0.99, 0.99),
    after: Sequence[float] = (1.0, 0.999, 1.0),
) -> dict[str, Any]:
    """Accuracies of post-norm by depth, one per seed; cosines at the last layer of all of its depths."""
    variants = {}
    for name, values in post.items():
        for kind, accuracy in (("post", values), ("pre", pre)):
            variants[f"{kind}-{name}"] = {
                "depth": DEPTHS[name],
                "rate": 3e-4,
                "stopped": 0,
                "accuracy": dict(zip(SEEDS, accuracy, strict=True)),
                "before training": {seed: [0.2, value] for seed, value in zip(SEEDS, before, strict=True)},
                "after training": {seed: [0.3, value] for seed, value in zip(SEEDS, after, strict=True)},
            }
    probes = {name: {"0.0003": 0.4, "0.001": 0.1 if name.startswith("post") else 0.5} for name in variants}
    return {"chance": 0.1, "variants": variants, "probes": probes}


GOOD, POOR, NONE = (0.55, 0.56, 0.57), (0.40, 0.42, 0.41), (0.10, 0.11, 0.10)


def test_confirmed_where_only_the_deepest_fails() -> None:
    judgement = CLAIM.judge(measured({"12": GOOD, "24": POOR, "40": NONE}))
    assert judgement.verdict == "confirmed"
    assert "fails with 40 blocks." in judgement.words
    # 0.103 - (0.1 + 0.6) / 2, in the middle
    assert judgement.findings[0].interval.value == pytest.approx(0.31 / 3 - 0.35)
    assert "40 blocks" in judgement.findings[0].what


def test_half_of_what_pre_norm_learned_is_the_border() -> None:
    just_over, just_under = (0.352, 0.357, 0.362), (0.338, 0.343, 0.348)
    assert CLAIM.judge(measured({"12": GOOD, "24": just_over, "40": just_over})).verdict == "undecided"
    assert CLAIM.judge(measured({"12": GOOD, "24": just_under, "40": just_over})).verdict == "confirmed"


def test_an_interval_that_reaches_over_the_border_decides_nothing() -> None:
    assert CLAIM.judge(measured({"12": GOOD, "24": GOOD, "40": (0.10, 0.30, 0.45)})).verdict == "undecided"


def test_refuted_where_post_norm_is_as_good_at_all_depths() -> None:
    as_good = (0.58, 0.59, 0.60)
    assert CLAIM.judge(measured({"12": as_good, "24": as_good, "40": as_good})).verdict == "refuted"
    assert CLAIM.judge(measured({"12": as_good, "24": as_good, "40": GOOD})).verdict == "undecided"


def test_refuted_where_those_that_fail_have_tokens_that_differ() -> None:
    fails = {"12": GOOD, "24": GOOD, "40": NONE}
    assert CLAIM.judge(measured(fails, after=(0.2, 0.3, 0.25))).verdict == "refuted"
    assert CLAIM.judge(measured(fails, before=(0.2, 0.3, 0.25))).verdict == "refuted"
    assert CLAIM.judge(measured(fails, after=(0.93, 0.94, 0.95))).verdict == "undecided"
    # Where nothing fails, nothing is claimed of tokens.
    assert CLAIM.judge(measured({"12": GOOD, "24": GOOD, "40": GOOD}, after=(0.2, 0.3, 0.25))).verdict == "undecided"


def test_undecided_where_the_shallowest_fails_too() -> None:
    assert CLAIM.judge(measured({"12": NONE, "24": NONE, "40": NONE})).verdict == "undecided"


def test_undecided_where_pre_norm_does_not_train_either() -> None:
    judgement = CLAIM.judge(measured({"12": GOOD, "24": (0.10,) * 3, "40": (0.10,) * 3}, pre=(0.15, 0.16, 0.17)))
    assert "no depth" in judgement.words
    assert judgement.verdict == "undecided"


def test_without_the_deepest() -> None:
    assert CLAIM.judge(measured({"12": GOOD, "24": NONE})).verdict == "confirmed"


def test_one_rate_for_both_is_only_reported() -> None:
    found = [one for one in CLAIM.judge(measured({"12": GOOD, "24": NONE})).findings if "at rate 0.001" in one.what]
    assert [one.interval.value for one in found] == pytest.approx([-0.4, -0.4])
    assert {one.verdict for one in found} == {None}


def test_draws_depths_and_layers() -> None:
    panels = CLAIM.figure(measured({"12": GOOD, "24": POOR, "40": NONE})).panels
    post = panels[0].series[0]
    assert list(post.x) == [12, 24, 40]
    assert post.y == pytest.approx([0.56, 0.41, 0.31 / 3])
    assert panels[-1].series[0].name == "post-12"
    assert panels[-1].series[0].y == pytest.approx([0.3, 2.999 / 3])
