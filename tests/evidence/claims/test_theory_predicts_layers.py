from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from unsmooth import apply, fold
from unsmooth.evidence import CLAIMS, Bench, Specimen
from unsmooth.evidence.claims.theory_predicts_layers import DOMINANCE, PLAIN, TheoryPredictsLayers, balanced_accuracy
from unsmooth.explaining import explain
from unsmooth.models import demo
from unsmooth.networks import ViT, ViTConfig

CLAIM = TheoryPredictsLayers()


def layer(predicted: float | None, measured: float) -> dict[str, float | None]:
    return {"measured": measured, "cosine": measured, **dict.fromkeys((PLAIN, DOMINANCE), predicted)}


def model(name: str, right_rises: int, rises: int, right_falls: int, falls: int, **facts: Any) -> dict[str, Any]:
    layers = [layer(1.0 if place < right_rises else -1.0, 0.1) for place in range(rises)]
    layers += [layer(-1.0 if place < right_falls else 1.0, -0.1) for place in range(falls)]
    plain = {"lineage": name, "ours": False, "trained": True, "sequences": 16}
    return {"name": name, "layers": layers, **plain, **facts}


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [((29, 30, 29, 30), "for"), ((30, 30, 0, 30), "against"), ((20, 30, 20, 30), "undecided")],
)
def test_rule(counts: tuple[int, int, int, int], outcome: str) -> None:
    judged = CLAIM.judge({"models": [model(name, *counts) for name in "abc"]})
    assert judged.outcome == outcome
    assert judged.findings[0].interval.value == pytest.approx((counts[0] / counts[1] + counts[2] / counts[3]) / 2)


def test_dominance_is_judged_by_its_own_rule() -> None:
    models = [model(name, 29, 30, 29, 30) for name in "abc"]
    for one in (layer for found in models for layer in found["layers"]):
        one["dominance"] = -one["dominance"]
    assert CLAIM.judge({"models": models}).outcome == "for"
    dominance = CLAIMS["dominance-predicts-layers"].judge({"models": models})
    assert dominance.outcome == "against"
    assert dominance.findings[0].interval.value == pytest.approx(1 / 30)


def test_always_saying_the_same_is_chance_however_often_it_is_right() -> None:
    found = balanced_accuracy([model("a", 90, 90, 0, 10)], "eigenvalue")
    assert found.value == 0.5
    assert found.low < 0.5 < found.high


def test_without_models_of_others_nothing_is_decided() -> None:
    ours = model("demo:plain", 30, 30, 30, 30, ours=True)
    random = model("random", 30, 30, 30, 30, trained=False)
    judged = CLAIM.judge({"models": [ours, random]})
    assert judged.outcome == "undecided"
    assert any("demo:plain" in finding.what for finding in judged.findings)


def test_nothing_is_known_where_layers_all_go_one_way() -> None:
    found = balanced_accuracy([model("a", 12, 12, 0, 0)], "eigenvalue")
    assert (found.low, found.high) == (0.0, 1.0)


def test_interval_of_one_model_is_the_exact_one_averaged() -> None:
    """With one lineage all draws are alike: what remains are the two exact intervals."""
    found = balanced_accuracy([model("a", 18, 20, 3, 10)], "eigenvalue")
    ends = [binomtest(hits, of).proportion_ci(method="exact") for hits, of in ((18, 20), (3, 10))]
    assert found.low == pytest.approx(np.mean([end.low for end in ends]))
    assert found.high == pytest.approx(np.mean([end.high for end in ends]))


def test_models_that_disagree_widen_the_interval() -> None:
    """Half of the models all right and half all wrong is not 200 layers that are right half of the time."""
    torn = [model(f"right {place}", 50, 50, 50, 50) for place in range(2)]
    torn += [model(f"wrong {place}", 0, 50, 0, 50) for place in range(2)]
    alike = [model(str(place), 25, 50, 25, 50) for place in range(4)]
    wide, narrow = (balanced_accuracy(models, "eigenvalue") for models in (torn, alike))
    assert wide.value == narrow.value == 0.5
    assert (wide.low, wide.high) == (0.0, 1.0)
    assert narrow.high - narrow.low < 0.2


def test_models_trained_from_one_another_are_drawn_together() -> None:
    apart = [model(str(place), 10 * place, 20, 10, 20) for place in range(3)]
    together = [{**one, "lineage": "same"} for one in apart]
    assert balanced_accuracy(together, "eigenvalue").count == 1
    assert balanced_accuracy(apart, "eigenvalue").count == 3


def test_layers_without_a_prediction_are_left_out() -> None:
    known = model("a", 8, 10, 4, 10)
    more = {**known, "layers": [*known["layers"], layer(None, 0.1), layer(None, -0.1)]}
    assert balanced_accuracy([more], "eigenvalue") == balanced_accuracy([known], "eigenvalue")


def pulling(factor: float) -> nn.TransformerEncoder:
    """One pre-norm layer whose attention averages all tokens and whose H is `factor` times the identity: no MLP."""
    layer = nn.TransformerEncoderLayer(8, 1, 8, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in (part for block in model.layers for part in block.parameters()):
            parameter.zero_()
        for block in model.layers:
            block.norm1.weight.fill_(1.0)
            block.norm2.weight.fill_(1.0)
            block.self_attn.in_proj_weight[16:] = torch.eye(8)
            block.self_attn.out_proj.weight.copy_(factor * torch.eye(8))
    return model


@pytest.mark.parametrize(("factor", "alike"), [(0.5, True), (-0.5, False)])
def test_layers_of_which_the_direction_is_known(factor: float, alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Averaging attention with H = ±I/2 adds to the token mean or takes from it, and nothing else."""
    monkeypatch.setattr(demo, "built", lambda: False)
    x_BND = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))
    x_BND -= x_BND.mean(dim=-1, keepdim=True)
    x_BND += torch.tensor([1.0, -1.0] * 4)
    specimen = Specimen("pulling", lambda: pulling(factor), lambda: x_BND)
    found = CLAIM.measure(Bench(specimens=(specimen,)))["models"][0]
    for layer in found["layers"]:
        assert (layer["measured"] > 0) == alike
        assert (layer["cosine"] > 0) == alike
        assert (layer["eigenvalue"] > 0) == alike
        assert (layer["dominance"] > 0) == alike


def test_a_layer_that_can_only_sharpen_is_not_said_to_smooth(monkeypatch: pytest.MonkeyPatch) -> None:
    """H = −BBᵀ behind a norm that takes the mean out: 1 + λ is at most 1, and reaches it but for rounding."""
    monkeypatch.setattr(demo, "built", lambda: False)
    torch.manual_seed(0)
    network = ViT(ViTConfig(depth=2, dim=48, heads=3, hidden=32, image=8, patch=4, classes=5))
    apply(network, "sharpen", basis="gram")
    specimen = Specimen("sharp", lambda: fold(network), lambda: [torch.randn(2, 3, 8, 8)])
    found = CLAIM.measure(Bench(specimens=(specimen,)))["models"][0]
    assert [layer["eigenvalue"] for layer in found["layers"]] == [0.0, 0.0]


def test_saved_explanations_are_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "built", lambda: False)
    explain(pulling(0.5), torch.randn(2, 5, 8), jacobian=False, progress=False).save(tmp_path / "saved")

    def fail() -> nn.Module:
        raise AssertionError("it was explained before")

    specimen = Specimen("pulling", fail, list, explained=str(tmp_path / "saved"))
    found = CLAIM.measure(Bench(specimens=(specimen,)))["models"][0]
    assert len(found["layers"]) == 2
    assert found["sequences"] == 2


def test_drawn() -> None:
    figure = CLAIM.figure({"models": [model("a", 8, 10, 4, 10), model("demo:plain", 3, 6, 3, 6, ours=True)]})
    assert [series.name for series in figure.panels[0].series] == ["trained by others", "trained here"]
    assert len(figure.panels[1].series) == 2
