"""What findings say besides the verdict: which block and head, attention beside chance, pushes, the sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.explaining.seeing import BY_NAME, Matrix, encoder, found_by_spectra, set_values, streams
from tests.models.entry import Entry
from tests.report.fake_explanations import layer_finding
from unsmooth.explaining.result import Skill
from unsmooth.explaining.words import sentence, verdicts_judged


def test_the_sentence_counts_verdicts() -> None:
    model = set_values(encoder(layers=3), 0.5)
    with torch.no_grad():
        model.layers[1].self_attn.out_proj.weight.mul_(-1.0)
    assert "3 layers taken alone, 2 smoothing and 1 preserving (weights only)" in found_by_spectra(model).sentence


def skilled(name: str, right: float, balanced: float | None, explained: float | None = None) -> Skill:
    return Skill(name, f"what {name} knows", 6, explained, right, balanced)


def test_the_sentence_leads_with_what_was_measured_and_what_foretells_it() -> None:
    layers = [layer_finding(layer) for layer in range(1, 7)]  # t_sim rises over every other layer
    other = skilled("persistence", 0.5, 0.5, -0.3)
    wrong, right = skilled("verdicts", 0.17, 0.5), skilled("verdicts", 0.83, 0.8)
    useful, lost = skilled("T2", 1.0, 1.0, 0.83), skilled("T2", 0.5, 0.5, 0.2)
    text = sentence("vit", layers, [useful, other, right], None)
    assert text == (
        "vit: measured, t_sim rises over 3 and falls over 3 of 6 layers; T2, which knows what T2 knows, foretells "
        "100% of the directions and 83% of the variance; persistence 50% and none of the variance; taken alone, of 6 "
        "layers 3 smoothing and 3 sharpening."
    )
    alone = sentence("vit", layers, [lost, other, wrong], None)
    assert alone.endswith("no tier foretells the directions better than a coin and persistence, right in 50%.")
    judged = verdicts_judged([other, wrong])
    assert "right in 17% of 6 layers (balanced 50%); persistence in 50% (balanced 50%). They say what" in judged
    assert "They say" not in verdicts_judged([other, right])
    assert verdicts_judged([useful, other]) == ""


def test_the_sentence_of_a_model_with_nan_says_so_first() -> None:
    model = set_values(encoder(layers=3), 0.5)
    x = streams()
    x[0, 0, 0] = float("nan")
    text = found_by_spectra(model, x).sentence
    assert ": activations were NaN or Inf, so nothing measured is told; of 3 layers taken alone, 3 " in text
    assert "t_sim" not in text


@pytest.mark.parametrize(("name", "calls"), [("albert-shared", 6), ("albert-groups", 12)])
def test_shared_blocks_are_as_many_layers_as_calls(name: str, calls: int) -> None:
    entry: Entry = BY_NAME[name]
    explanation = found_by_spectra(entry.model(), entry.batch("right"))
    assert [layer.layer for layer in explanation.layers] == list(range(1, calls + 1))
    assert [(head.layer, head.head) for head in explanation.heads] == [
        (layer, head) for layer in range(1, calls + 1) for head in range(2)
    ]
    blocks = [layer.block for layer in explanation.layers]
    assert len(set(blocks)) == (1 if calls == 6 else 6)
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
    explanation = found_by_spectra(BY_NAME[name].model())
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
    explanation = found_by_spectra(looking(set_values(encoder(), 0.5), logits), streams(tokens=7))
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
    for head in found_by_spectra(
        entry.model(), {"input_ids": entry.batch("none")["input_ids"]}, spectral_sequences=1
    ).heads:
        assert head.entropy is not None
        draws = [np.sort(np.diag(random_causal(6, head.entropy, generator)))[-2] for _ in range(2000)]
        assert head.random_second_eigenvalue == pytest.approx(np.quantile(draws, 0.95), abs=0.03)
        assert head.softmax_second_eigenvalue is not None


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
    assert found_by_spectra(model).layers[0].drift == pytest.approx(float(push.norm()), rel=1e-6)
    x = streams()
    mean_norm = np.mean([np.linalg.norm(x[index].double().numpy().mean(axis=0)) for index in range(3)])
    assert found_by_spectra(model, x).layers[0].drift == pytest.approx(float(push.norm()) / mean_norm, rel=1e-5)
