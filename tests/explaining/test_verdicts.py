"""Verdicts on layers whose fate is known: built by hand, or decided by the dense matrix of the whole layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.explaining.seeing import BY_NAME, Matrix, encoder, set_values, streams, token_mean, view_of
from tests.models.entry import Entry
from unsmooth import explain
from unsmooth.explaining import Explanation, LayerFinding
from unsmooth.models import ValueProjection, value_projection


def found(model: nn.Module, data: Any = None, **options: Any) -> Explanation:
    return explain(model, data, progress=False, **({"jacobian": False} | options))


def values_of(model: nn.Module, data: Any = None, **options: Any) -> list[str]:
    return [layer.verdict for layer in found(model, data, **options).layers]


@torch.no_grad()
def negated(model: nn.TransformerEncoder) -> nn.TransformerEncoder:
    for layer in model.layers:
        layer.norm1.weight.neg_()
    return model


# Tokens of one length and little alike, so that the branch and not the scale of the stream decides.
DATA = [None, streams()]
DATA_NAMES = ["weights", "data"]


@pytest.mark.parametrize("data", DATA, ids=DATA_NAMES)
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_half_the_identity_smooths_and_its_negative_does_not(norm_first: bool, heads: int, data: Tensor | None) -> None:
    model = encoder(heads=heads, norm_first=norm_first)
    assert set(values_of(set_values(model, 0.5), data)) == {"smoothing"}
    assert not set(values_of(set_values(model, -0.5), data)) & {"smoothing", "undecided"}


@pytest.mark.parametrize("data", DATA, ids=DATA_NAMES)
def test_negating_the_weight_of_a_norm_before_the_branch_turns_it(data: Tensor | None) -> None:
    assert set(values_of(negated(set_values(encoder(), 0.5)), data)) <= {"sharpening", "preserving"}
    assert set(values_of(negated(set_values(encoder(), -0.5)), data)) == {"smoothing"}


@pytest.mark.parametrize("strength", [0.5, -0.5])
def test_negating_the_weight_of_a_norm_after_the_addition_turns_nothing(strength: float) -> None:
    """It negates stream and branch alike, and the words must not promise otherwise."""
    plain = found(set_values(encoder(norm_first=False), strength))
    turned = found(negated(set_values(encoder(norm_first=False), strength)))
    for one, other in zip(plain.layers, turned.layers, strict=True):
        assert one.verdict == other.verdict
        assert one.mean_modulus == pytest.approx(other.mean_modulus, rel=1e-9)
        assert "negating" not in one.change
        assert one.flip_scale is None


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
        explanation = found(model, [batch], spectral_sequences=1)
    else:
        explanation = found(model, batch, spectral_sequences=1)
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
    explanation = found(model, entry.batch(padding), spectral_sequences=1)
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
        explanation = found(llama_with_one_head(-0.5), data, spectral_sequences=1)
        (layer,), (head,) = explanation.layers, explanation.heads
        assert head.mean_modulus == pytest.approx(layer.mean_modulus, rel=1e-6)
        assert head.mean_modulus == pytest.approx(abs(1 - 0.5 / (layer.scale or 1.0)), rel=1e-6)
        assert head.verdict == layer.verdict == "sharpening"
        assert head.rest_modulus == (None if data is None else pytest.approx(layer.rest_modulus, rel=1e-3))


def sinking(dim: int, seed: int) -> Tensor:
    """A matrix whose eigenvalues all have negative real parts, complex pairs among them."""
    noise = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = torch.linalg.eigvals(noise)
    return (noise - (float(values.real.max()) + 0.2) * torch.eye(dim)).float()


@torch.no_grad()
def scaled_norms(model: nn.TransformerEncoder, factor: float) -> nn.TransformerEncoder:
    for layer in model.layers:
        layer.norm1.weight.fill_(factor)
    return model


@pytest.mark.parametrize("seed", range(4))
def test_flip_scale_is_where_the_verdict_turns(seed: int) -> None:
    """A stream of scale σ is a norm weight of 1/σ: the verdict just below and above, and no σ in between turns it."""
    matrix = sinking(8, seed)
    turns = {layer.flip_scale for layer in found(set_values(encoder(layers=1), matrix)).layers}
    (flip,) = turns
    centred = (np.eye(8) - 1 / 8) @ matrix.double().numpy()
    values = np.linalg.eigvals(centred)
    values = values[np.abs(values) > 1e-9]
    if (values.real > 0).any():  # centring may bring an eigenvalue to the other side
        assert flip is None
        return
    assert flip is not None
    grid = np.geomspace(flip / 100, flip * 100, 2001)
    smooths = np.abs(1 + values[None] / grid[:, None]).max(axis=1) > 1 + 1e-9
    assert grid[smooths].max() == pytest.approx(flip, rel=0.01)
    assert smooths[grid < 0.99 * flip].all()
    assert not smooths[grid > 1.01 * flip].any()
    below, above = (set_values(encoder(layers=1), matrix) for _ in range(2))
    assert values_of(scaled_norms(below, 1 / (0.9 * flip))) == ["smoothing"]
    assert "smoothing" not in values_of(scaled_norms(above, 1 / (1.1 * flip)))


@pytest.mark.parametrize("strength", [-0.5, -4.0])
@pytest.mark.parametrize("heads", [1, 2])
def test_data_do_not_move_the_flip_scale(strength: float, heads: int) -> None:
    """σ = |λ|/2 for one negative λ; the zero that a LayerNorm's centring gives has no say."""
    model = set_values(encoder(heads=heads), strength)
    for data in DATA:
        explanation = found(model, data)
        for one in (*explanation.layers, *explanation.heads):
            assert one.flip_scale == pytest.approx(-strength / 2, rel=1e-6)


@pytest.mark.parametrize(("strength", "verdict"), [(0.5, "smoothing"), (-0.1, "sharpening"), (-4.0, "smoothing")])
def test_what_would_change_a_verdict_follows_from_it(strength: float, verdict: str) -> None:
    (layer,) = found(set_values(encoder(layers=1), strength), streams()).layers
    assert layer.verdict == verdict
    assert layer.scale is not None
    if strength == 0.5:
        assert layer.flip_scale is None
        assert "No scale of the stream alone does it" in layer.change
    elif strength == -0.1:
        assert "σ below 0.05" in layer.change
    else:
        assert "σ above 2" in layer.change
    assert "positive real part" not in layer.change or strength > 0


def test_a_verdict_without_data_says_what_it_supposes() -> None:
    (layer,) = found(set_values(encoder(layers=1), 0.5)).layers
    assert "σ = 1, for want of data" in layer.reason
    assert "were attention to average all tokens" in layer.reason
    assert "leaves out MLP" in layer.reason
    assert layer.scale is None
    assert layer.rest_modulus is None
    assert layer.similarity_before is None
    assert layer.measured is None
    assert layer.predicted == {}
    assert layer.breakdown is None
    assert layer.gains is None
    assert layer.margin == pytest.approx(np.log(layer.mean_modulus), rel=1e-9)


def test_a_verdict_with_data_says_at_which_scale() -> None:
    explanation = found(set_values(encoder(layers=1), 0.5), streams())
    (layer,) = explanation.layers
    stream = streams().flatten(0, 1).double().numpy()
    sigma = np.median(np.sqrt(stream.var(axis=1) + 1e-5))
    assert layer.scale == pytest.approx(np.partition(np.sqrt(stream.var(axis=1) + 1e-5), 8)[8], rel=1e-5)
    assert layer.scale == pytest.approx(sigma, rel=0.1)
    assert f"σ = {layer.scale:.3g}" in layer.reason
    assert all("other heads" in head.reason for head in explanation.heads)


def test_the_sentence_counts_verdicts() -> None:
    model = set_values(encoder(layers=3), 0.5)
    with torch.no_grad():
        model.layers[1].self_attn.out_proj.weight.mul_(-1.0)
    assert "3 layers taken alone, 2 smoothing and 1 preserving (weights only)" in found(model).sentence


@pytest.mark.parametrize(("name", "calls"), [("albert-shared", 12), ("albert-groups", 24)])
def test_shared_blocks_are_as_many_layers_as_calls(name: str, calls: int) -> None:
    entry: Entry = BY_NAME[name]
    explanation = found(entry.model(), entry.batch("right"))
    assert [layer.layer for layer in explanation.layers] == list(range(1, calls + 1))
    assert [(head.layer, head.head) for head in explanation.heads] == [
        (layer, head) for layer in range(1, calls + 1) for head in range(2)
    ]
    blocks = [layer.block for layer in explanation.layers]
    assert len(set(blocks)) == (1 if calls == 12 else 6)
    assert all(layer.measured is not None for layer in explanation.layers)


@pytest.mark.parametrize(
    ("name", "kv_heads"),
    [
        ("llama-grouped", [0, 0, 1, 1]),
        ("phi3-grouped", [0, 0, 1, 1]),
        ("falcon-multi-query", [0, 0, 0, 0]),
        ("gpt2-tiny", [0, 1]),
    ],
)
def test_grouped_heads_name_the_value_head_they_read(name: str, kv_heads: list[int]) -> None:
    explanation = found(BY_NAME[name].model())
    first = [head for head in explanation.heads if head.layer == 1]
    assert [head.kv_head for head in first] == kv_heads
    assert [head.head for head in first] == list(range(len(kv_heads)))


@torch.no_grad()
def looking(model: nn.TransformerEncoder, logits: float) -> nn.TransformerEncoder:
    """Queries and keys that are the token times √logits: 0 averages, much looks at itself alone."""
    for layer in model.layers:
        dim = layer.self_attn.embed_dim
        layer.self_attn.in_proj_weight[: 2 * dim] = (logits**0.5) * torch.eye(dim).repeat(2, 1)
        layer.self_attn.in_proj_bias[: 2 * dim] = 0.0
    return model


@pytest.mark.parametrize(("logits", "entropy"), [(0.0, 1.0), (1e5, 0.0)])
def test_attention_at_the_ends_of_its_entropy(logits: float, entropy: float) -> None:
    """Rounding takes the entropy of averaging attention a little above 1, which is no reason to say nothing."""
    explanation = found(looking(set_values(encoder(), 0.5), logits), streams(tokens=7))
    assert explanation.notes == ()
    assert len(explanation.heads) == 4
    for head in explanation.heads:
        assert head.entropy == pytest.approx(entropy, abs=1e-6)
        assert head.second_eigenvalue == pytest.approx(1.0 - entropy, abs=1e-5)
        assert head.random_second_eigenvalue == pytest.approx(1.0 - entropy, abs=0.15)
        assert head.verdict == ("smoothing" if logits == 0.0 else "undecided")


def test_causal_attention_is_held_against_causal_chance() -> None:
    """Random causal maps have a far larger |μ₂|: the largest diagonal entry after the first."""
    entry = BY_NAME["gpt2-tiny"]
    generator = np.random.default_rng(0)
    for head in found(entry.model(), {"input_ids": entry.batch("none")["input_ids"]}, spectral_sequences=1).heads:
        assert head.entropy is not None
        draws = [np.sort(np.diag(random_causal(6, head.entropy, generator)))[-2] for _ in range(2000)]
        assert head.random_second_eigenvalue == pytest.approx(np.mean(draws), abs=0.03)


def random_causal(tokens: int, entropy: float, generator: np.random.Generator) -> Matrix:
    """Dirichlet rows over the past whose expected entropy, over its maximum, is `entropy` in each."""
    from scipy.optimize import brentq
    from scipy.special import digamma

    matrix = np.zeros((tokens, tokens))
    matrix[0, 0] = 1.0
    for row in range(1, tokens):
        keys = row + 1

        def off(log_alpha: float, keys: int = keys) -> float:
            alpha = np.exp(log_alpha)
            return float(digamma(keys * alpha + 1) - digamma(alpha + 1) - entropy * np.log(keys))

        matrix[row, :keys] = generator.dirichlet(np.full(keys, np.exp(brentq(off, -15, 15))))
    return matrix


def test_bias_pushes_are_measured_beside_the_mean() -> None:
    model = set_values(encoder(layers=1, norm_first=False), 0.5)
    push = torch.arange(8.0)
    with torch.no_grad():
        model.layers[0].self_attn.out_proj.bias.copy_(push)
    assert found(model).layers[0].drift == pytest.approx(float(push.norm()), rel=1e-6)
    x = streams()
    mean_norm = np.mean([np.linalg.norm(x[index].double().numpy().mean(axis=0)) for index in range(3)])
    assert found(model, x).layers[0].drift == pytest.approx(float(push.norm()) / mean_norm, rel=1e-5)
