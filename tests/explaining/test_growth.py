"""Growth over the stack, against explicit products of dense Jacobians."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.explaining.seeing import BY_NAME, dense_jacobians, encoder, streams, token_mean, view, view_of
from tests.models.entry import DIM, Padding
from unsmooth.explaining.growth import stack_growth
from unsmooth.explaining.observe import BatchView, LayerView


def growth_of_products(seen: BatchView, seed: int, dim: int = DIM) -> tuple[float, float]:
    """log‖S J_L S … S J_1 S v‖ − log‖S v‖ per layer of both sides, for the probe that the seed gives."""
    first = seen.layers[0].sites["input"]
    probe = torch.randn(first.shape, generator=torch.Generator().manual_seed(seed), dtype=first.dtype)
    by_layer = [dense_jacobians(layer, layer.sites["input"], seen.real_BN) for layer in seen.layers]
    totals = []
    for index, real_N in enumerate(seen.real_BN):
        vector = probe[index, real_N].flatten().numpy()
        mean = token_mean(int(real_N.sum()), dim)
        logs = []
        for side in (mean, np.eye(len(mean)) - mean):
            product = side
            for jacobians in by_layer:
                product = side @ jacobians[index] @ product
            logs.append(math.log(np.linalg.norm(product @ vector) / np.linalg.norm(side @ vector)))
        totals.append(logs)
    mean_log, rest_log = np.mean(totals, axis=0) / len(by_layer)
    return float(mean_log), float(rest_log)


@pytest.mark.parametrize(
    ("name", "padding"), [("bert-tiny", "right"), ("gpt2-tiny", "left"), ("torch_encoder-pre-tokens-first", "right")]
)
def test_exponents_are_those_of_the_product(name: str, padding: Padding) -> None:
    seen = view_of(BY_NAME[name], padding)
    found = stack_growth(seen, probes=1, seed=5)
    mean, rest = growth_of_products(seen, seed=5)
    assert found.mean_exponent == pytest.approx(mean, abs=1e-9)
    assert found.rest_exponent == pytest.approx(rest, abs=1e-9)
    assert found.layers == 3
    assert found.margin == pytest.approx(mean - rest, abs=1e-9)


def test_probes_are_averaged() -> None:
    seen = view(encoder().double(), streams().double(), None)
    both, first, second = (stack_growth(seen, **options) for options in ({"seed": 3}, probe(3), probe(4)))
    assert both.mean_exponent == pytest.approx((first.mean_exponent + second.mean_exponent) / 2, abs=1e-12)
    assert both.rest_exponent == pytest.approx((first.rest_exponent + second.rest_exponent) / 2, abs=1e-12)
    assert first != second


def probe(seed: int) -> dict[str, int]:
    return {"probes": 1, "seed": seed}


class Mixing(torch.nn.Module):
    """X ↦ a X + (b − a) ΠX: the mean grows by b, the rest by a."""

    def __init__(self, rest: float, mean: float) -> None:
        super().__init__()
        self.rest, self.mean = rest, mean

    def forward(self, x: Tensor) -> Tensor:
        return self.rest * x + (self.mean - self.rest) * x.mean(dim=1, keepdim=True)


def test_layers_that_differ_by_hand() -> None:
    x = streams(dim=3).double()
    layers = []
    for rest, mean in ((0.5, 3.0), (4.0, 0.25), (1e-3, 7.0)):
        block = Mixing(rest, mean)
        layers.append(LayerView(block, "0", (x,), {}, True, {"input": x, "output": block(x)}))
    found = stack_growth(BatchView(layers, torch.ones(3, 6, dtype=torch.bool)))
    assert found.mean_exponent == pytest.approx(math.log(3.0 * 0.25 * 7.0) / 3, abs=1e-12)
    assert found.rest_exponent == pytest.approx(math.log(0.5 * 4.0 * 1e-3) / 3, abs=1e-12)


def test_single_tokens_do_not_count() -> None:
    x = streams(batch=2, dim=3)
    block = Mixing(0.5, 3.0)
    real = torch.tensor([[True] * 6, [True] + [False] * 5])

    class Masked(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([block(x[:1]), x[1:]])

    layer = LayerView(Masked(), "0", (x,), {}, True, {"input": x, "output": x})
    found = stack_growth(BatchView([layer, layer], real))
    assert found.mean_exponent == pytest.approx(math.log(3.0), abs=1e-6)
    assert found.rest_exponent == pytest.approx(math.log(0.5), abs=1e-6)
