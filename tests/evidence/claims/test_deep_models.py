"""Claims about deep models, on made-up accuracies and cosines: what the first runs say, and why they do not decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from unsmooth.evidence import CLAIMS

POST, RESCUED, RIVALS = (CLAIMS[name] for name in ("post-norm-fails-deep", "deescalation-rescues", "surgical-rivals"))
SEEDS = ("0", "1", "2")
GRID = (1e-4, 3e-4, 1e-3)
Values = Sequence[float]


def around(value: float) -> Values:
    return (value - 0.005, value, value + 0.005)


def measured(accuracies: dict[str, Values], *, rate: float = 3e-4, precision: str | None = "float32") -> dict[str, Any]:
    """Variant to accuracies by seed; cosines are all the same."""
    variants = {
        name: {
            "depth": int(name.rpartition("-")[2]),
            "rate": rate,
            "stopped": 0,
            "accuracy": dict(zip(SEEDS, values, strict=True)),
            **({} if precision is None else {"precision": precision}),
            **{f"{when} training": {seed: [0.2, 0.5] for seed in SEEDS} for when in ("before", "after")},
        }
        for name, values in accuracies.items()
    }
    probes = {name: {f"{one:g}": 0.1 if name.startswith("post") else 0.5 for one in GRID} for name in variants}
    return {"chance": 0.1, "variants": variants, "probes": probes}


SHALLOW = {"post-12": around(0.56), "pre-12": around(0.6)}
DEEP = {"post-24": around(0.41), "pre-24": around(0.6), "deescalate-24": around(0.58)}
DEEPER = {"post-40": around(0.1), "pre-40": around(0.6), "deescalate-40": around(0.5)}


def test_what_ran_before_the_rule_decides_nothing() -> None:
    everything = SHALLOW | DEEP | DEEPER
    for claim in (POST, RESCUED):
        judgement = claim.judge(measured(everything, rate=1e-4, precision="bfloat16"))
        assert judgement.outcome == "undecided"
        assert {one.outcome for one in judgement.findings} == {None}
        assert "post-40, 0.0001, is at an end of its grid" in judgement.words
        assert "trained in bfloat16" in judgement.words


def test_gaps_to_pre_norm_the_deepest_first() -> None:
    findings = POST.judge(measured(SHALLOW | DEEP | DEEPER)).findings
    assert [one.what.rpartition(", ")[2] for one in findings[:3]] == ["40 blocks", "24 blocks", "12 blocks"]
    assert [one.interval.value for one in findings[:3]] == pytest.approx([-0.5, -0.19, -0.04])
    one_rate = [one.interval.value for one in findings if "at rate 0.001" in one.what]
    assert one_rate == pytest.approx([-0.4, -0.4, -0.4])


def test_gains_are_paired_by_seed() -> None:
    """Seeds differ by more than the gain, which is the same in each."""
    swinging = {"post-24": (0.3, 0.4, 0.5), "pre-24": (0.4, 0.5, 0.6), "deescalate-24": (0.35, 0.45, 0.55)}
    gain = RESCUED.judge(measured(swinging)).findings[0].interval
    assert (gain.value, gain.low) == (pytest.approx(0.05), pytest.approx(0.05))


@pytest.mark.parametrize("rival", [around(0.57), around(0.65), (0.50, 0.61, 0.72)])
def test_rivals_are_told_and_not_judged_by_what_ran_before_the_rule(rival: Values) -> None:
    judgement = RIVALS.judge(measured(DEEP | {"pre-24": around(0.57), "b2t-24": rival}))
    assert judgement.outcome == "undecided"
    assert {one.outcome for one in judgement.findings} == {None}
    assert judgement.findings[0].interval.value == min(one.interval.value for one in judgement.findings)
    gaps = {one.what.split(",")[1]: one.interval.value for one in judgement.findings}
    assert gaps[" de-escalation minus b2t"] == pytest.approx(0.58 - sum(rival) / 3)
    assert "24 blocks: " in judgement.words


def test_without_deep_models_there_is_nothing_to_say() -> None:
    assert RIVALS.judge(measured(SHALLOW)).outcome == "undecided"


def test_draws_depths_and_layers() -> None:
    panels = POST.figure(measured(SHALLOW | DEEP | DEEPER)).panels
    assert list(panels[0].series[0].x) == [12, 24, 40]
    assert panels[0].series[0].y == pytest.approx([0.56, 0.41, 0.1])
    accuracy, cosine = RESCUED.figure(measured(DEEP | {"rezero-24": around(0.50)})).panels
    assert list(accuracy.series[0].x) == ["pre", "deescalate", "rezero", "post"]
    assert {series.name: series.y[-1] for series in cosine.series}["deescalate-24"] == 0.5
