"""Growth factors of layers and heads are those of their dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.explaining.seeing import BY_NAME, Matrix, found_by_spectra, token_mean, view_of
from unsmooth.explaining import LayerFinding
from unsmooth.models import ValueProjection, value_projection


def spectral_radii(layer: LayerFinding, values: ValueProjection, maps_HNN: Matrix, norm: str) -> tuple[float, float]:
    """Largest moduli on both sides of the dense matrix of X ↦ (X + Σ A_h X H_h) R, folded here anew at its σ."""
    dim, tokens = values.dim, maps_HNN.shape[-1]
    assert layer.scale is not None
    gamma = np.ones(dim) if values.norm.weight is None else values.norm.weight.double().numpy()
    centre = np.eye(dim) - (1.0 / dim if values.norm.kind == "layer" else 0.0)
    factor = centre @ np.diag(gamma) / layer.scale
    whole = np.eye(tokens * dim)
    for h, map_NN in enumerate(maps_HNN):
        product = (values.w_v[h].double() @ values.w_o[h].double()).numpy()
        if values.gain is not None:
            product = product @ np.diag(values.gain.double().numpy())
        # Rows laid end to end: A X H is (A ⊗ Hᵀ) x.
        whole += np.kron(map_NN, (factor @ product if norm == "pre" else product).T)
    if norm == "post":
        whole = np.kron(np.eye(tokens), factor.T) @ whole
    mean = token_mean(tokens, dim)
    rest = np.eye(len(mean)) - mean
    sides = (mean @ whole @ mean, rest @ whole @ rest)
    first, second = (float(np.abs(np.linalg.eigvals(side)).max()) for side in sides)
    return first, second


@pytest.mark.parametrize(
    "name",
    [
        "bert-tiny",
        "gpt2-tiny",
        "llama-grouped",
        "gpt_neox-parallel",
        "timm_vit-stand-in-scaled",
        "torch_encoder-pre-tokens-first",
        "torch_encoder-post-batch-first",
    ],
)
def test_moduli_are_those_of_the_dense_layer(name: str) -> None:
    entry = BY_NAME[name]
    padding = entry.paddings[0]
    model, batch = entry.model(), entry.batch(padding)
    if not entry.batch_first:  # what cuts data into batches cuts the first dimension
        batch = {key: value[:, :1] if key == "src" else value[:1] for key, value in batch.items()}
        explanation = found_by_spectra(model, [batch], spectral_sequences=1)
    else:
        explanation = found_by_spectra(model, batch, spectral_sequences=1)
    seen = view_of(entry, padding, torch.float32)
    for number, layer in enumerate(explanation.layers):
        maps = seen.layers[number].maps_BHNN
        assert maps is not None
        real = seen.real_BN[0]
        values = value_projection(model, number)
        mean, rest = spectral_radii(layer, values, maps[0][:, real][:, :, real].double().numpy(), values.place)
        assert layer.mean_modulus == pytest.approx(mean, rel=1e-4)
        assert layer.rest_modulus == pytest.approx(rest, rel=1e-3)
        assert layer.margin == pytest.approx(np.log(mean / rest), abs=2e-3)
        wanted = "smoothing" if mean > 1.001 * rest else "sharpening" if rest > 1.001 * mean else None
        assert wanted is None or layer.verdict == wanted


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-grouped", "bert-tiny", "timm_vit-stand-in-scaled"])
def test_heads_are_those_of_the_dense_head(name: str) -> None:
    """X ↦ X + A X H of one head alone; a norm after the addition has no part in it."""
    entry = BY_NAME[name]
    padding = entry.paddings[0]
    model = entry.model()
    explanation = found_by_spectra(model, entry.batch(padding), spectral_sequences=1)
    seen = view_of(entry, padding, torch.float32)
    for head in explanation.heads:
        assert_head(head, explanation.layers[head.layer - 1], value_projection(model, head.layer - 1), seen)


def assert_head(head: Any, layer: LayerFinding, values: ValueProjection, seen: Any) -> None:
    real = seen.real_BN[0]
    map_NN = seen.layers[head.layer - 1].maps_BHNN[0, head.head][real][:, real].double().numpy()
    dim, tokens = values.dim, len(map_NN)
    factor = np.eye(dim)
    if values.place == "pre":
        assert values.norm.weight is not None
        centre = np.eye(dim) - (1.0 / dim if values.norm.kind == "layer" else 0.0)
        factor = centre @ np.diag(values.norm.weight.double().numpy()) / layer.scale
    product = factor @ (values.w_v[head.head].double() @ values.w_o[head.head].double()).numpy()
    if values.gain is not None:
        product = product @ np.diag(values.gain.double().numpy())
    whole = np.eye(tokens * dim) + np.kron(map_NN, product.T)
    mean = token_mean(tokens, dim)
    rest = np.eye(len(mean)) - mean
    radii = [np.abs(np.linalg.eigvals(side @ whole @ side)).max() for side in (mean, rest)]
    assert head.mean_modulus == pytest.approx(radii[0], rel=1e-3)
    assert head.rest_modulus == pytest.approx(radii[1], rel=1e-3)
    assert head.asymmetry == pytest.approx(np.linalg.norm(product - product.T) / 2 / np.linalg.norm(product), rel=1e-4)
    ends = np.linalg.eigvalsh((product + product.T) / 2)
    assert (head.range_low, head.range_high) == pytest.approx((ends[0], ends[-1]), rel=1e-4, abs=1e-6)
    second = np.sort(np.abs(np.linalg.eigvals(map_NN)))[-2]
    assert head.second_eigenvalue == pytest.approx(second, abs=2e-3)
    off_mean = np.eye(tokens) - 1.0 / tokens
    assert head.quotient_norm == pytest.approx(np.linalg.norm(off_mean @ map_NN @ off_mean, 2), rel=1e-4)
    apart = np.abs(map_NN[:, None] - map_NN[None]).sum(axis=-1).max() / 2
    assert head.dobrushin == pytest.approx(apart, rel=1e-4)


def llama_with_one_head(strength: float) -> nn.Module:
    """RMSNorm and one head as wide as the stream: H has full rank."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=40,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=8,
    )
    torch.manual_seed(0)
    model = LlamaModel(config).eval()
    with torch.no_grad():
        model.embed_tokens.weight.normal_()
        model.layers[0].self_attn.v_proj.weight.copy_(torch.eye(8))
        model.layers[0].self_attn.o_proj.weight.copy_(strength * torch.eye(8))
    return model


def test_a_single_head_as_wide_as_the_stream_is_the_layer() -> None:
    ids = torch.randint(5, 40, (2, 6), generator=torch.Generator().manual_seed(0))
    for data in (None, {"input_ids": ids}):
        explanation = found_by_spectra(llama_with_one_head(-0.5), data, spectral_sequences=1)
        (layer,), (head,) = explanation.layers, explanation.heads
        assert head.mean_modulus == pytest.approx(layer.mean_modulus, rel=1e-6)
        assert head.mean_modulus == pytest.approx(abs(1 - 0.5 / (layer.scale or 1.0)), rel=1e-6)
        assert head.verdict == layer.verdict == "sharpening"
        assert head.rest_modulus == (None if data is None else pytest.approx(layer.rest_modulus, rel=1e-3))
