"""Asymmetry of H over training."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tests.evidence.trained import bench, run
from unsmooth.evidence import CLAIMS
from unsmooth.networks import ViT, ViTConfig
from unsmooth.training.run import measure_spectra

CLAIM = CLAIMS["asymmetry-falls"]


def measured(falls: list[float]) -> dict[str, Any]:
    """Three layers; the last one stays as it was."""
    plain = {
        str(seed): [
            {"epoch": 0.0, "layers": [0.7, 0.7, 0.7]},
            {"epoch": 5.0, "layers": [0.9, 0.9, 0.9]},
            {"epoch": 9.0, "layers": [0.7 - fall, 0.7 - fall, 0.7]},
        ]
        for seed, fall in enumerate(falls)
    }
    return {"plain": plain, "largest": {"sharpen": {str(seed): 0.0 for seed in range(len(falls))}}}


@pytest.mark.parametrize(
    ("falls", "outcome"),
    [([0.1, 0.12, 0.11], "for"), ([0.1, -0.1, 0.05], "undecided"), ([-0.1, -0.12, -0.11], "against")],
)
def test_rule(falls: list[float], outcome: str) -> None:
    found = CLAIM.judge(measured(falls))
    assert found.outcome == outcome
    assert found.findings[0].interval.value == pytest.approx(-numpy.mean(falls) * 2 / 3)


def test_reports_where_it_falls_and_draws_it() -> None:
    numbers = measured([0.1, 0.2, 0.3])
    share = CLAIM.judge(numbers).findings[3]
    assert share.what.startswith("share of layers")
    assert share.interval.value == pytest.approx(2 / 3)
    over_training, by_layer, layer_by_layer = CLAIM.figure(numbers).panels
    assert list(over_training.series[0].x) == [0.0, 5.0, 9.0]
    assert over_training.series[0].y == pytest.approx([0.7, 0.9, 0.7 - 0.4 / 3])
    assert by_layer.series[1].y == pytest.approx([0.5, 0.5, 0.7])
    assert [one.name for one in layer_by_layer.series] == ["layer 1", "layer 2", "layer 3"]


def test_measures_plain_models_over_training_and_the_others_at_their_worst() -> None:
    spectra = tuple({"epoch": epoch, "layers": [{"asymmetry": epoch}, {"asymmetry": 0.5}]} for epoch in (0.0, 0.25))
    runs = {variant: {3: run(variant, 3, 0.5, spectra=spectra)} for variant in ("plain", "sharpen", "smooth")}
    found = CLAIM.measure(bench(steering=runs))
    assert found["plain"] == {"3": [{"epoch": 0.0, "layers": [0.0, 0.5]}, {"epoch": 0.25, "layers": [0.25, 0.5]}]}
    assert found["largest"] == {"sharpen": {"3": 0.5}, "smooth": {"3": 0.5}}


def test_what_is_kept_of_a_run_is_the_asymmetry_of_the_summed_product() -> None:
    """Against numpy, from the weights of the network by hand: x W_Vᵀ W_Oᵀ in torch's layout."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(depth=2, dim=96, heads=3, hidden=64, image=8, patch=4, classes=5))
    found = [layer["asymmetry"] for layer in measure_spectra(model)]
    for block, got in zip(model.stack.blocks, found, strict=True):
        values = block.attention.qkv.weight.detach().double().numpy()[2 * 96 :]
        output = block.attention.out.weight.detach().double().numpy()
        h = values.T @ output.T
        assert got == pytest.approx(numpy.linalg.norm(h - h.T) / (2 * numpy.linalg.norm(h)), rel=1e-6)
        assert got == pytest.approx(0.5**0.5, abs=0.02), "H and Hᵀ of independent entries are nearly orthogonal"
