"""Rules predict what their definitions say, by hand or from dense Jacobians, and never look at the layer's output."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import roots_legendre
from torch import Tensor, nn

from tests.explaining.seeing import (
    BY_NAME,
    Matrix,
    dense_jacobians,
    encoder,
    set_values,
    similarity,
    streams,
    tokens_of,
    view,
    view_of,
)
from tests.models.entry import Padding
from unsmooth import apply, explain, fold
from unsmooth.explaining.jacobian import Split
from unsmooth.explaining.observe import BatchView
from unsmooth.explaining.rules import JACOBIANS, RULES, LayerInput
from unsmooth.models import ValueProjection, value_projection
from unsmooth.networks import ViT, ViTConfig

NAMES = ["gpt2-tiny", "bert-tiny", "llama-grouped", "gpt_neox-parallel", "torch_encoder-post-batch-first"]
OF_INPUT = [name for name, rule in RULES.items() if rule.of_input is not None]


def given(seen: BatchView, layer: int, values: ValueProjection | None) -> LayerInput:
    return LayerInput(seen.layers[layer - 1], Split(seen.real_BN), values)


def predicted(name: str, seen: BatchView, layer: int, values: ValueProjection | None) -> list[float]:
    rule = RULES[name].of_input
    assert rule is not None
    found = rule(given(seen, layer, values))
    assert found is not None
    return found.double().tolist()


def test_the_rules() -> None:
    assert set(RULES) == {"eigenvalue", "dominance", "token_mean", "attention", "collapse", "jacobian"}
    assert all((rule.of_spectra is None) != (rule.of_input is None) for rule in RULES.values())


def read_by_attention(seen: BatchView, layer: int, values: ValueProjection) -> list[Matrix]:
    """What attention reads less the bias of a norm before it."""
    sites = seen.layers[layer - 1].sites
    tokens = tokens_of(sites["input" if values.place == "post" else "normed"], seen.real_BN)
    if values.place == "post" or values.norm.bias is None:
        return tokens
    return [one - values.norm.bias.double().numpy() for one in tokens]


def products(values: ValueProjection) -> list[Matrix]:
    gain = np.ones(values.dim) if values.gain is None else values.gain.double().numpy()
    pairs = zip(values.w_v.double().numpy(), values.w_o.double().numpy(), strict=True)
    return [w_v @ w_o * gain for w_v, w_o in pairs]


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", NAMES)
def test_attention_rule_by_hand(name: str, padding: Padding) -> None:
    """t_sim(X + Σ_h A_h X H_h) − t_sim(X), sequence by sequence, without a bias anywhere."""
    entry = BY_NAME[name]
    seen, values = view_of(entry, padding, torch.float32), value_projection(entry.model(), 1)
    found = predicted("attention", seen, 2, values)
    maps_BHNN = seen.layers[1].maps_BHNN
    assert maps_BHNN is not None
    streams_in = tokens_of(seen.layers[1].sites["input"], seen.real_BN)
    for index, (x, read) in enumerate(zip(streams_in, read_by_attention(seen, 2, values), strict=True)):
        real = seen.real_BN[index]
        maps = maps_BHNN[index][:, real][:, :, real].double().numpy()
        after = x + sum(map_NN @ read @ h for map_NN, h in zip(maps, products(values), strict=True))
        assert found[index] == pytest.approx(similarity(after) - similarity(x), abs=2e-5)


def test_attention_rule_takes_a_norm_on_the_branch_as_it_is() -> None:
    seen = view_of(BY_NAME["gemma-gemma2"], "none", torch.float32)
    values = value_projection(BY_NAME["gemma-gemma2"].model(), 0)
    x, branch = (tokens_of(seen.layers[0].sites[site], seen.real_BN) for site in ("input", "attention"))
    wanted = [similarity(one + other) - similarity(one) for one, other in zip(x, branch, strict=True)]
    assert predicted("attention", seen, 1, values) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_token_mean_rule_by_hand(name: str) -> None:
    entry = BY_NAME[name]
    seen, values = view_of(entry, "right", torch.float32), value_projection(entry.model(), 0)
    wanted = []
    for x, read in zip(
        tokens_of(seen.layers[0].sites["input"], seen.real_BN), read_by_attention(seen, 1, values), strict=True
    ):
        before = x.mean(axis=0)
        after = before + read.mean(axis=0) @ sum(products(values))
        wanted.append(math.log(np.linalg.norm(after) / np.linalg.norm(before)))
    assert predicted("token_mean", seen, 1, values) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("name", ["bert-tiny", "gpt2-tiny"])
def test_expansions_from_dense_jacobians(name: str) -> None:
    entry = BY_NAME[name]
    seen, values = view_of(entry, "left"), value_projection(entry.model(), 0)
    layer, split = seen.layers[0], Split(seen.real_BN)
    x = layer.sites["input"]
    point, rest = split.mean_part(x), split.rest_part(x)
    with torch.no_grad():
        start = layer.rerun(torch.where(seen.real_BN.unsqueeze(-1), point, x))
    at_collapse = dense_jacobians(layer, point, seen.real_BN)
    nodes, weights = roots_legendre(JACOBIANS)
    on_the_way = [dense_jacobians(layer, point + (1 + float(node)) / 2 * rest, seen.real_BN) for node in nodes]
    of = {"collapse": ([at_collapse], [2.0]), "jacobian": (on_the_way, weights)}
    for rule, (jacobians, shares) in of.items():
        found = predicted(rule, seen, 1, values)
        for index, real in enumerate(seen.real_BN):
            matrix = sum(share / 2 * one[index] for share, one in zip(shares, jacobians, strict=True))
            pushed = (matrix @ rest[index, real].flatten().numpy()).reshape(-1, x.shape[-1])
            wanted = similarity(start[index, real].numpy() + pushed) - similarity(x[index, real])
            assert found[index] == pytest.approx(wanted, abs=1e-9), rule


def near_collapse(distance: float) -> Tensor:
    """Tokens at `distance` from their mean."""
    x = streams(2, 5).double()
    mean = x.mean(dim=1, keepdim=True) + 1.0
    return mean + distance * (x - x.mean(dim=1, keepdim=True))


@pytest.mark.parametrize("norm_first", [True, False])
def test_expansions_err_as_their_order_says(norm_first: bool) -> None:
    """To first order f is right up to ‖X̃‖², so t_sim up to ‖X̃‖³; with k Gauss points f is right up to ‖X̃‖^(2k+1)."""
    model = encoder(layers=1, norm_first=norm_first, activation="gelu").double()
    values = value_projection(model, 0)
    errors: dict[str, list[float]] = {"collapse": [], "jacobian": []}
    for distance in (0.5, 0.25):
        seen = view(model, near_collapse(distance), None)
        sites = seen.layers[0].sites
        for name, found in errors.items():
            measured = [similarity(sites["output"][i]) - similarity(sites["input"][i]) for i in range(2)]
            found.append(max(abs(a - b) for a, b in zip(predicted(name, seen, 1, values), measured, strict=True)))
    assert errors["collapse"][0] / errors["collapse"][1] > 2**1.5
    assert errors["jacobian"][0] / errors["jacobian"][1] > 2 ** (1.5 * JACOBIANS)
    assert errors["jacobian"][1] < 1e-3 * errors["collapse"][1]


class Straight(nn.Module):
    """A linear block: what both expansions say is what happens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.tokens = nn.Linear(8, 8), nn.Parameter(torch.randn(6, 6).softmax(dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.tokens @ self.features(x)


def test_a_linear_block_is_predicted_exactly() -> None:
    found = explain(nn.Sequential(Straight(), Straight()), streams(), blocks="*", progress=False)
    for layer in found.layers:
        assert layer.predicted["collapse"] == pytest.approx(layer.measured, abs=1e-6)
        assert layer.predicted["jacobian"] == pytest.approx(layer.measured, abs=1e-6)
        assert abs(layer.measured or 0.0) > 1e-3
        assert set(layer.predicted) == {"collapse", "jacobian"}


@pytest.mark.parametrize("name", OF_INPUT)
def test_no_rule_sees_the_output(name: str) -> None:
    model = encoder(norm_first=False)
    values = value_projection(model, 0)
    plain, blinded = (view(model, streams(), None) for _ in range(2))
    for site in ("output", "mid", "mlp"):
        blinded.layers[0].sites[site].fill_(float("nan"))
    assert predicted(name, blinded, 1, values) == predicted(name, plain, 1, values)


def test_rules_that_need_weights_say_nothing_without_them() -> None:
    seen = view(encoder(), streams(), None)
    for name in ("token_mean", "attention"):
        rule = RULES[name].of_input
        assert rule is not None
        assert rule(given(seen, 1, None)) is None


def test_rules_of_spectra_are_logs_of_the_moduli() -> None:
    found = explain(set_values(encoder(), 0.5), streams(), progress=False, jacobian=False)
    for layer in found.layers:
        assert layer.predicted["eigenvalue"] == pytest.approx(math.log(layer.mean_modulus), rel=1e-9)
        assert layer.rest_modulus is not None
        assert layer.predicted["dominance"] == pytest.approx(
            math.log(layer.mean_modulus / layer.rest_modulus), abs=1e-9
        )


def test_explain_averages_rules_over_sequences() -> None:
    entry = BY_NAME["bert-tiny"]
    model = entry.model()
    seen = view_of(entry, "right", torch.float32)
    found = explain(model, entry.batch("right"), progress=False, jacobian=False)
    for number, layer in enumerate(found.layers, start=1):
        for name in OF_INPUT:
            wanted = np.mean(predicted(name, seen, number, value_projection(model, number - 1)))
            assert layer.predicted[name] == pytest.approx(wanted, abs=1e-5), name
    assert set(found.rules) == set(RULES)
    assert {score.rule for score in found.scores} == set(RULES)


def test_a_layer_that_can_only_sharpen_is_not_said_to_smooth() -> None:
    """H = −BBᵀ behind a norm that takes the mean out: 1 + λ is at most 1, and reaches it but for rounding."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(depth=2, dim=48, heads=3, hidden=32, image=8, patch=4, classes=5))
    apply(model, "sharpen", basis="gram")
    why = explain(fold(model), [torch.randn(2, 3, 8, 8)], progress=False, jacobian=False)
    for layer in why.layers:
        assert layer.mean_modulus == pytest.approx(1.0, abs=1e-5)
        assert layer.predicted["eigenvalue"] == 0.0
