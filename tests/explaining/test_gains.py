"""Norms of the four parts of a block's Jacobian and growth at the collapsed point, against dense matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.explaining.seeing import BY_NAME, Matrix, block_map, dense_jacobians, encoder, token_mean, view, view_of
from tests.models.entry import DIM
from unsmooth.explaining.jacobian import BlockMap, Split, gains
from unsmooth.explaining.result import Gains

NAMES = ["bert-tiny", "gpt2-tiny"]


def projections(jacobian: Matrix, dim: int = DIM) -> tuple[Matrix, Matrix]:
    mean = token_mean(len(jacobian) // dim, dim)
    return mean, np.eye(len(mean)) - mean


def norms(jacobians: list[Matrix], dim: int = DIM) -> dict[str, float]:
    """2-norms of the four parts from singular values, mean over sequences."""
    found: dict[str, list[float]] = {"mean": [], "rest": [], "mean_to_rest": [], "rest_to_mean": []}
    for jacobian in jacobians:
        mean, rest = projections(jacobian, dim)
        for name, part in {
            "mean": mean @ jacobian @ mean,
            "rest": rest @ jacobian @ rest,
            "mean_to_rest": rest @ jacobian @ mean,
            "rest_to_mean": mean @ jacobian @ rest,
        }.items():
            found[name].append(np.linalg.svd(part, compute_uv=False)[0])
    return {name: float(np.mean(values)) for name, values in found.items()}


def radii(jacobians: list[Matrix], dim: int = DIM) -> tuple[float, float]:
    """Spectral radii of both sides, geometric means over sequences."""
    logs = []
    for jacobian in jacobians:
        sides = [side @ jacobian @ side for side in projections(jacobian, dim)]
        logs.append([math.log(np.abs(np.linalg.eigvals(side)).max()) for side in sides])
    mean, rest = np.exp(np.mean(logs, axis=0))
    return float(mean), float(rest)


@pytest.mark.parametrize("name", NAMES)
def test_norms_are_largest_singular_values(name: str) -> None:
    seen = view_of(BY_NAME[name], "right")
    layer = seen.layers[1]
    found = gains(block_map(seen, 2), steps=100, growth_steps=2)
    for part, wanted in norms(dense_jacobians(layer, layer.sites["input"], seen.real_BN)).items():
        assert getattr(found, part) == pytest.approx(wanted, rel=1e-3), part
        assert getattr(found, part) <= wanted * (1 + 1e-9), part


def test_few_steps_give_a_lower_bound_that_is_near() -> None:
    seen = view_of(BY_NAME["bert-tiny"], "left")
    layer = seen.layers[0]
    found = gains(block_map(seen, 1))
    for part, wanted in norms(dense_jacobians(layer, layer.sites["input"], seen.real_BN)).items():
        assert 0.8 * wanted < getattr(found, part) <= wanted * (1 + 1e-9), part


@pytest.mark.parametrize("name", NAMES)
def test_growth_at_the_collapsed_point_is_the_spectral_radius(name: str) -> None:
    seen = view_of(BY_NAME[name], "left")
    block = block_map(seen, 1)
    found = gains(block, steps=1, growth_steps=200)
    mean, rest = radii(dense_jacobians(seen.layers[0], block.collapsed(), seen.real_BN))
    # A complex pair makes lengths swing, which the average over 100 steps smooths out to about a per cent.
    assert found.collapsed_mean == pytest.approx(mean, rel=0.02)
    assert found.collapsed_rest == pytest.approx(rest, rel=0.02)


def test_a_linear_block_by_hand() -> None:
    """X ↦ 2X + ΠX·3: the mean grows fivefold, the rest twofold, and nothing crosses over."""

    class Linear(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * x + 3.0 * x.mean(dim=1, keepdim=True)

    found = gains(linear_map(Linear(), torch.ones(2, 4, dtype=torch.bool)))
    assert found.mean == pytest.approx(5.0, rel=1e-12)
    assert found.rest == pytest.approx(2.0, rel=1e-12)
    assert found.mean_to_rest == pytest.approx(0.0, abs=1e-12)
    assert found.rest_to_mean == pytest.approx(0.0, abs=1e-12)
    assert found.collapsed_mean == pytest.approx(5.0, rel=1e-12)
    assert found.collapsed_rest == pytest.approx(2.0, rel=1e-12)


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * x


def linear_map(module: torch.nn.Module, real_BN: torch.Tensor) -> BlockMap:
    from unsmooth.explaining.observe import LayerView

    x = torch.randn(*real_BN.shape, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return BlockMap(LayerView(module, "0", (x,), {}, True, {"input": x, "output": module(x)}), Split(real_BN))


def test_sequences_without_differences_do_not_count() -> None:
    """A single token has no rest, and padding alone has nothing: both would drag the means down."""
    real = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    found = gains(linear_map(Doubling(), real))
    wanted = Gains(2.0, 2.0, 0.0, 0.0, 2.0, 2.0)
    for name in ("mean", "rest", "mean_to_rest", "rest_to_mean", "collapsed_mean", "collapsed_rest"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), abs=1e-9), name


def test_same_seed_same_numbers_and_the_seed_hardly_matters() -> None:
    seen = view(encoder(), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3)), None)
    first, again, other = (gains(block_map(seen, 1), steps=30, growth_steps=4, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert other.mean == pytest.approx(first.mean, rel=1e-2)
    assert other.rest == pytest.approx(first.rest, rel=1e-2)
    assert other != first
