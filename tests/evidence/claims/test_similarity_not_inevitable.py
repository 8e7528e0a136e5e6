from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t, ttest_rel
from torch import nn

from unsmooth.evidence import CLAIMS, Bench, Claim, Specimen
from unsmooth.evidence.claims.similarity_not_inevitable import DEFINITIONS, SimilarityNotInevitable
from unsmooth.evidence.interval import share
from unsmooth.models import demo

RISES, FALLS = [0.1, 0.001], [-0.1, 0.001]
CLAIM = SimilarityNotInevitable()


def changes(steps: list[list[float]], ends: list[float]) -> dict[str, Any]:
    return {"steps": steps, "ends": ends}


def model(
    name: str,
    steps: list[list[float]],
    ends: list[float] = RISES,
    ordinary: list[list[float]] | None = None,
    lineage: str = "",
    **facts: Any,
) -> dict[str, Any]:
    by = {
        "curve": [0.0] * (len(steps) + 1),
        "every": changes(steps, ends),
        "ordinary": None if ordinary is None else changes(ordinary, ends),
        "random": {"curve": [0.0] * (len(steps) + 1), "ends": RISES},
        "beside_random": FALLS,
    }
    plain = {"ours": False, "trained": True, "sequences": 16, "massive_tokens": 0.0}
    return {"name": name, "lineage": lineage or name, "by": dict.fromkeys(DEFINITIONS, by), **plain, **facts}


def outcome(*models: dict[str, Any], claim: Claim = CLAIM) -> str:
    return claim.judge({"models": list(models)}).outcome


INCREASES = CLAIMS["similarity-increases"]


def test_two_models_that_end_so_are_cases_of_either_half() -> None:
    models = [model("a", [RISES, FALLS], FALLS), model("b", [FALLS], FALLS), model("c", [RISES])]
    judged = CLAIM.judge({"models": models})
    assert judged.outcome == "for"
    assert judged.findings[0].interval == share(2, 3)
    assert outcome(*models, claim=INCREASES) == "undecided"
    assert outcome(*models, model("d", [RISES]), claim=INCREASES) == "for"


def test_no_number_of_models_speaks_against_a_sentence_that_one_is_enough_for() -> None:
    rising = [model(name, [RISES, RISES]) for name in "abcdefgh"]
    assert outcome(*rising) == "undecided"
    falling = [model(name, [FALLS, FALLS], FALLS) for name in "abcdefgh"]
    assert outcome(*falling, claim=INCREASES) == "undecided"


def test_a_layer_that_falls_is_reported_and_does_not_decide() -> None:
    judged = CLAIM.judge({"models": [model("a", [RISES, FALLS]), model("b", [FALLS])]})
    assert judged.outcome == "undecided"
    layers = [one for one in judged.findings if "some layer makes tokens less alike" in one.what]
    assert [one.interval for one in layers] == [share(2, 2)] * len(DEFINITIONS)
    assert {one.outcome for one in layers} == {None}


def test_models_trained_from_one_another_are_one_case() -> None:
    assert outcome(*(model(name, [FALLS], FALLS, lineage="x") for name in "ab")) == "undecided"


def test_ours_random_ones_and_none_do_not_count() -> None:
    falling = [model("a", [FALLS], FALLS, ours=True), model("b", [FALLS], FALLS, trained=False)]
    assert outcome(*falling, model("c", [FALLS], FALLS)) == outcome() == "undecided"


def test_an_end_that_massive_tokens_make_is_none() -> None:
    def half(name: str) -> dict[str, Any]:
        found = model(name, [FALLS], FALLS, ordinary=[RISES])
        found["by"] = {key: {**by, "ordinary": changes([RISES], RISES)} for key, by in found["by"].items()}
        return found

    assert outcome(half("a"), half("b")) == outcome(half("a"), half("b"), claim=INCREASES) == "undecided"


def test_ends_hold_for_all_lineages_together() -> None:
    """2.5 standard errors below 0 are below it alone (2.13 at 15 degrees of freedom), not for ten lineages."""
    single, many = float(t.ppf(0.975, 15)), float(t.ppf(1 - 0.025 / 10, 15))
    assert single < 2.5 < many
    others = [model(name, [RISES]) for name in "cdefghij"]
    assert outcome(*(model(name, [FALLS], [-0.025, 0.01]) for name in "ab"), *others) == "undecided"
    surely = [-0.01 * (many + 0.01), 0.01]
    assert outcome(*(model(name, [FALLS], surely) for name in "ab"), *others) == "for"


class Mixing(nn.Module):
    """Blocks that pull tokens towards their mean by a factor: t_sim has a closed form."""

    def __init__(self, pulls: list[float]) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0, batch_first=True) for _ in pulls]
        self.layers = nn.ModuleList(layers)
        for layer, pull in zip(layers, pulls, strict=True):
            layer.forward = lambda x, pull=pull: x.mean(1, keepdim=True) + pull * (x - x.mean(1, keepdim=True))  # type: ignore[method-assign]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_steps_are_paired_differences_and_point_towards_more_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "built", lambda: False)
    x_BND = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    specimen = Specimen("mixing", lambda: Mixing([0.5, 3.0]), lambda: x_BND)
    found = CLAIM.measure(Bench(specimens=(specimen,)))["models"][0]
    similarity = []
    for pull in (1.0, 0.5, 1.5):
        x = x_BND.double().numpy()
        mean = 5 * (x.mean(axis=1) ** 2).sum(axis=1)
        similarity.append(mean / (mean + pull**2 * ((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2))))
    steps = found["by"]["token_similarity"]["every"]["steps"]
    for step, (before, after) in zip(steps, pairwise(similarity), strict=True):
        tested = ttest_rel(after, before)
        assert step[0] == pytest.approx(np.mean(after - before), rel=1e-4)
        assert step[0] / step[1] == pytest.approx(tested.statistic, rel=1e-4)
    assert steps[0][0] > 0 > steps[1][0]
    ranks = found["by"]["stable_rank"]["every"]["steps"]
    assert ranks[0][0] > 0 > ranks[1][0], "rank falls as tokens become alike"


def test_registered_and_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "built", lambda: False)
    measured = CLAIMS["similarity-not-inevitable"].measure(Bench())
    assert CLAIM.judge(measured).outcome == "undecided"
    figure = CLAIM.figure(measured)
    assert [series.mark for series in figure.panels[0].series] == ["dashed", "dashed"]
