"""Weights that have no inverse or too few eigenvectors still have a finite answer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.explaining.seeing import encoder, found, set_values, streams


def nilpotent(rank: int) -> Tensor:
    matrix = torch.zeros(8, 8)
    for row in range(rank):
        matrix[row, row + 1] = 2.0
    return matrix


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("matrix", [nilpotent(1), nilpotent(7), torch.zeros(8, 8), torch.ones(8, 8)])
def test_singular_and_defective_weights_have_finite_answers(matrix: Tensor, norm_first: bool) -> None:
    model = set_values(encoder(norm_first=norm_first), matrix)
    for data in (None, streams()):
        explanation = found(model, data)
        for one in (*explanation.layers, *explanation.heads):
            assert math.isfinite(one.mean_modulus)
            assert math.isfinite(one.margin)
            assert one.flip_scale is None or math.isfinite(one.flip_scale)
        for head in explanation.heads:
            assert not math.isnan(head.condition)
            assert math.isfinite(head.asymmetry)
        assert all(math.isfinite(value.real) for layer in explanation.layers for value in layer.eigenvalues)


def test_a_nilpotent_h_grows_nothing() -> None:
    """All eigenvalues of 1 + H are 1 then, whatever its size; the numerical range tells of the size."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=40,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=4,
        intermediate_size=8,
    )
    model = LlamaModel(config).eval()
    with torch.no_grad():
        model.layers[0].self_attn.v_proj.weight.copy_(torch.eye(8))
        model.layers[0].self_attn.o_proj.weight.copy_(nilpotent(1).mT * 50.0)
    explanation = found(model)
    (layer,) = explanation.layers
    assert layer.verdict == "preserving"
    assert layer.mean_modulus == pytest.approx(1.0, abs=1e-6)
    assert explanation.heads[0].range_high == pytest.approx(50.0, rel=1e-5)
