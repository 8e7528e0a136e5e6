"""The rule on made-up numbers, and the measurement on networks whose shares one can work out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.evidence.trained import bench, run
from unsmooth.evidence import CLAIMS, Trained
from unsmooth.evidence import run as _run  # noqa: F401 - registers the claims
from unsmooth.evidence.claims.pre_norm_diminishes import _untrained, quarters

CLAIM = CLAIMS["pre-norm-diminishes"]
SEEDS = ("0", "1", "2")


def _shares(ratio: float, spread: float = 0.01) -> dict[str, Any]:
    """Eight layers whose last quarter is so much of the first, about so by seed."""
    return {
        seed: {"attention": [1.0] * 4 + [ratio + spread * sign] * 4, "mlp_ratio": 0.5, "on_noise": 1.0, "accuracy": 0.8}
        for seed, sign in zip(SEEDS, (-1, 0, 1), strict=True)
    }


def _measured(pre: float = 0.5, post: float = 1.0, fresh: float = 0.5, spread: float = 0.01) -> dict[str, Any]:
    return {
        "chance": 0.1,
        "untrained": {"xavier": {"12": {"pre": _shares(fresh), "post": _shares(1.1)}}},
        "trained": {"12": {"pre": _shares(pre, spread), "post": _shares(post, spread / 2)}, "24": {}},
    }


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, "for"),
        ({"pre": 1.3, "post": 1.5}, "against"),
        ({"post": 0.3}, "against"),
        ({"fresh": 1.05}, "for"),  # before training is only reported
        ({"spread": 0.4}, "undecided"),
    ],
)
def test_rule(changed: dict[str, float], outcome: str) -> None:
    measured = _measured(**changed)
    assert CLAIM.judge(measured).outcome == outcome
    assert all(len(series.x) == len(series.y) for panel in CLAIM.figure(measured).panels for series in panel.series)


def test_models_that_learned_nothing_are_left_out_and_named() -> None:
    measured = _measured(post=0.3)  # would be against
    for one in measured["trained"]["12"]["post"].values():
        one["accuracy"] = 0.12
    judged = CLAIM.judge(measured)
    assert judged.outcome == "undecided"  # nothing is against, but there is no post-norm model to compare with
    assert "post-12 of seed 1" in judged.words
    assert not any("minus" in one.what and "after" in one.what for one in judged.findings)


def test_runs_that_were_stopped_have_no_shares() -> None:
    measured = _measured()
    measured["trained"]["12"]["post"]["2"] |= {"attention": None, "accuracy": 0.9}
    judged = CLAIM.judge(measured)
    gap = next(one for one in judged.findings if "minus" in one.what and "after" in one.what)
    assert gap.interval.count == 2
    assert "post-12 of seed 2" in judged.words


def test_quarters() -> None:
    assert quarters([1.0, 2.0]) == 2.0
    assert quarters([2.0, 4.0, *[9.0] * 4, 1.0, 0.5]) == 0.25
    assert quarters([2.0, *[9.0] * 5, 3.0]) == 1.5


def test_measure_reads_the_study() -> None:
    def looked(variant: str, seed: int, last: float, **more: Any) -> Trained:
        layers = [{"attention": 1.0, "mlp": 2.0}] * 3 + [{"attention": last, "mlp": 1.0}]
        return run(variant, seed, 0.5, looked={"branches": layers}, **more)

    stopped = run("post-24", 0, 0.5, state="stopped")
    study = {
        "pre-12": {0: looked("pre-12", 0, 0.25), 1: looked("pre-12", 1, 0.5)},
        "post-12": {0: looked("post-12", 0, 2.0)},
        "post-24": {0: stopped},
        "deescalate-24": {0: looked("deescalate-24", 0, 9.0)},
    }
    measured = CLAIM.measure(bench(depth_seeds=study))
    assert measured["chance"] == 0.01
    assert measured["trained"]["12"]["pre"]["1"] == {
        "accuracy": 0.5,
        "attention": [1.0, 1.0, 1.0, 0.5],
        "mlp_ratio": 0.5,
    }
    assert measured["trained"]["24"] == {"post": {"0": {"accuracy": 0.01, "attention": None, "mlp_ratio": None}}}
    assert measured["trained"]["40"] == {}
    found = CLAIM.judge(measured).findings
    assert found[0].interval.value == pytest.approx((0.25 + 0.5) / 2)
    assert found[1].interval.value == pytest.approx(2.0 - 0.25)


def test_untrained_streams_grow_as_branches_add_up() -> None:
    """Pre-norm with 40 blocks and Xavier's weights: branches of one size each, so that shares fall as 1/√layer."""
    found = _untrained("xavier", 40, "pre", 1, 96)
    shares = found["attention"]
    wanted = math.sqrt(sum(range(1, 11)) / sum(range(31, 41)))
    assert quarters(shares) == pytest.approx(wanted, rel=0.5)
    assert 0.2 < shares[39] / shares[9] < 0.8  # √(10/40)
    post = _untrained("xavier", 12, "post", 1, 96)["attention"]
    assert all(0.5 < share < 1.6 for share in post)  # a norm before each: shares stay what they are


@pytest.mark.parametrize(("mlp", "outcome"), [(0.5, "for"), (0.3, "against"), (0.4, "undecided")])
def test_stream_growth_compares_with_the_mlp(mlp: float, outcome: str) -> None:
    measured = _measured()
    for one in measured["trained"]["12"]["pre"].values():
        one["mlp_ratio"] = mlp
    claim = CLAIMS["stream-growth"]
    judged = claim.judge(measured)
    assert judged.outcome == outcome
    assert judged.findings[0].interval.value == pytest.approx(0.5 / mlp)
    assert claim.judge({**measured, "trained": {}}).outcome == "undecided"
