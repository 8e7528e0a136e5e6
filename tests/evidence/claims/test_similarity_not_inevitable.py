from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t, ttest_rel
from torch import nn

from unsmooth.evidence import CLAIMS, Bench, Specimen
from unsmooth.evidence.claims.similarity_not_inevitable import DEFINITIONS, SimilarityNotInevitable
from unsmooth.evidence.interval import share
from unsmooth.models import demo

RISES, FALLS = [0.1, 0.001], [-0.1, 0.001]
UNSURE = [-0.001, 0.1]
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


def verdict(*models: dict[str, Any]) -> str:
    return CLAIM.judge({"models": list(models)}).verdict


def test_two_models_in_which_a_layer_falls_confirm() -> None:
    judged = CLAIM.judge({"models": [model("a", [RISES, FALLS]), model("b", [FALLS]), model("c", [RISES])]})
    assert judged.verdict == "confirmed"
    assert judged.findings[0].interval == share(2, 3)


def test_all_rising_refutes() -> None:
    assert verdict(model("a", [RISES, RISES]), model("b", [RISES])) == "refuted"


@pytest.mark.parametrize(
    "models",
    [
        [model("a", [FALLS]), model("b", [RISES])],
        [model("a", [RISES])],
        [model("a", [RISES], ends=UNSURE), model("b", [RISES])],
        [],
    ],
    ids=["one falls", "one model", "an end is not sure", "none"],
)
def test_between_them_it_is_undecided(models: list[dict[str, Any]]) -> None:
    assert verdict(*models) == "undecided"


def test_models_trained_from_one_another_are_one_case() -> None:
    assert verdict(model("a", [FALLS], lineage="x"), model("b", [FALLS], lineage="x")) == "undecided"


def test_ours_and_random_ones_do_not_count() -> None:
    falling = [model("a", [FALLS], ours=True), model("b", [FALLS], trained=False), model("c", [FALLS])]
    assert verdict(*falling) == "undecided"


def test_a_fall_that_massive_tokens_make_is_none() -> None:
    assert verdict(*(model(name, [FALLS], ordinary=[RISES]) for name in "ab")) == "refuted"


def test_falls_of_different_layers_with_and_without_massive_tokens_are_none() -> None:
    assert verdict(*(model(name, [FALLS, RISES], ordinary=[RISES, FALLS]) for name in "ab")) == "refuted"


def test_intervals_hold_for_all_layers_and_definitions_together() -> None:
    """A step 2.5 standard errors below 0 is below it alone (2.13 at 15 degrees of freedom), not among many."""
    single, many = float(t.ppf(0.975, 15)), float(t.ppf(1 - 0.025 / (11 * len(DEFINITIONS)), 15))
    assert single < 2.5 < many
    steps = [[-0.025, 0.01], *[RISES] * 9]
    assert verdict(*(model(name, steps) for name in "ab")) == "refuted"
    surely = [[-0.01 * (many + 0.01), 0.01], *[RISES] * 9]
    assert verdict(*(model(name, surely) for name in "ab")) == "confirmed"


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
    assert CLAIM.judge(measured).verdict == "undecided"
    figure = CLAIM.figure(measured)
    assert [series.mark for series in figure.panels[0].series] == ["dashed", "dashed"]
