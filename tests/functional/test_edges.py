"""Numbers at the edges of float32: tokens that are nearly equal, very short or very long, against longer arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.functional.cases import gaussian, inputs_for
from unsmooth.functional import METRICS, Tokens
from unsmooth.functional._blocks import Workspace, blocks, joined, light_tokens, measure
from unsmooth.functional.linear_cka import alignment, centred_products

Long = np.ndarray


def _spread(x: Long) -> Long:
    return x - x.mean(axis=0)


def _composite(x: Long) -> np.longdouble:
    return np.sqrt(np.abs(x).sum(axis=0).max() * np.abs(x).sum(axis=1).max())


def _mean_cosine(x: Long) -> np.longdouble:
    unit = x / np.sqrt((x**2).sum(axis=1, keepdims=True))
    return ((unit.sum(axis=0) ** 2).sum() - len(x)) / (len(x) * (len(x) - 1))


# In 64 bits of mantissa and with exponents that no square here leaves.
REFERENCES: dict[str, Callable[[Long], np.longdouble]] = {
    "token_similarity": lambda x: len(x) * (x.mean(axis=0) ** 2).sum() / (x**2).sum(),
    "token_diversity": lambda x: (_spread(x) ** 2).sum() / (x**2).sum(),
    "hfc_lfc": lambda x: np.sqrt((_spread(x) ** 2).sum() / (len(x) * (x.mean(axis=0) ** 2).sum())),
    "mean_cosine": _mean_cosine,
    "rank_one_residual": lambda x: _composite(_spread(x)) / _composite(x),
    "dirichlet_energy": lambda x: (_spread(x) ** 2).sum(),
}
SCALE_FREE = [name for name in REFERENCES if name != "dirichlet_energy"]
MASK = torch.arange(60).unsqueeze(0) % 7 != 2


def measured(name: str, x: Tensor, mask: Tensor | None, way: str) -> float:
    """The value by the metric itself, or from the sums that a scan takes; with NaN at padding, or large numbers."""
    if mask is not None:
        x = x.masked_fill(~mask.unsqueeze(-1), torch.nan if "NaN" in way else 3e38)
    if "scan" not in way:
        return METRICS[name].function(x, mask).item()
    tokens = Tokens(x, mask)
    sums = joined([measure(block) for block in blocks(tokens, Workspace(), waits="without waiting" not in way)])
    light = light_tokens({"count_B": tokens.count_B, **sums}, x.shape, sums["norms_BN"].dtype)
    return METRICS[name].function(light).item()


def assert_agrees(name: str, x: Tensor, way: str, rel: float) -> None:
    mask = MASK if "mask" in way else None
    real = x[0] if mask is None else x[:, mask[0]][0]
    want = float(REFERENCES[name](real.numpy().astype(np.longdouble)))
    assert measured(name, x, mask, way) == pytest.approx(want, rel=rel, abs=1e-6 if name == "mean_cosine" else 0.0)


WAYS = ["metric", "metric, mask over NaN", "scan", "scan, mask over NaN", "scan, mask over numbers"]


@pytest.mark.parametrize("way", [*WAYS, "scan without waiting"])
@pytest.mark.parametrize("name", REFERENCES)
def test_digits_are_kept_down_to_a_diversity_of_1e_24(name: str, way: str) -> None:
    """By steps of ten in length: both as all features close in on a vector, and as all but one vanish."""
    for step in range(13):
        near = gaussian(1, 1, 16, seed=step) + 10.0**-step * gaussian(1, 60, 16, seed=99)
        vanishing = 10.0**-step * gaussian(1, 60, 16, seed=step)
        vanishing[..., 0] = 1.7
        if step <= 6:  # beyond, float32 has no numbers so close
            assert_agrees(name, near, way, rel=1e-5)
        assert_agrees(name, vanishing, way, rel=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCALE_FREE)
@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e-22, 1e-18, 1e-10, 1e10, 1e18, 1e22, 1e30, 1e37])
def test_scale_does_not_matter(name: str, way: str, scale: float) -> None:
    assert_agrees(name, scale * (gaussian(1, 60, 16) + 0.5 * gaussian(1, 1, 16, seed=1)), way, rel=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_short_token_has_a_direction_and_a_zero_one_has_none(way: str) -> None:
    x = gaussian(1, 60, 16) + 1.0
    x[:, 1] *= 1e-25
    x[:, 3] *= 1e25
    assert_agrees("mean_cosine", x, way, rel=1e-5)
    short, zero = x.clone(), x.clone()
    zero[:, 1] = 0.0
    mask = MASK if "mask" in way else None
    assert measured("mean_cosine", short, mask, way) > measured("mean_cosine", zero, mask, way) + 0.01


@pytest.mark.parametrize("way", ["metric", "scan"])
def test_float64_keeps_its_own_digits(way: str) -> None:
    for step in range(7):
        x = gaussian(1, 1, 16).double() + 10.0**-step * gaussian(1, 60, 16, seed=1).double()
        for name in SCALE_FREE:
            want = float(REFERENCES[name](x[0].numpy().astype(np.longdouble)))
            assert measured(name, x, None, way) == pytest.approx(want, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("way", ["metric", "scan", "scan without waiting"])
@pytest.mark.parametrize("name", ["token_diversity", "rank_one_residual", "hfc_lfc", "dirichlet_energy"])
def test_equal_tokens_have_no_diversity_at_all(name: str, way: str) -> None:
    """The mean of 11 equal numbers is not one of them in float32, and often not in float64."""
    assert measured(name, (gaussian(1, 1, 16) / 3).expand(1, 11, 16), None, way) == 0.0


@pytest.mark.parametrize("way", ["metric", "scan", "scan without waiting"])
def test_a_massive_first_token_costs_no_digits(way: str) -> None:
    x = gaussian(1, 2000, 16) + 0.5
    x[:, 0] *= 1e4
    for name in SCALE_FREE:
        assert_agrees(name, x, way, rel=2e-5)


@pytest.mark.parametrize("name", SCALE_FREE)
def test_gradients_follow_the_scale(name: str) -> None:
    """At x·c the gradient of what does not depend on scale is that at x, over c."""
    x = gaussian(1, 12, 7) + 0.5
    plain = x.clone().requires_grad_()
    METRICS[name].function(plain).sum().backward()
    for scale in (2.0**-90, 2.0**90):
        scaled = (x * scale).requires_grad_()
        METRICS[name].function(scaled).sum().backward()
        torch.testing.assert_close(scaled.grad * scale, plain.grad, rtol=1e-5, atol=1e-7)


def test_what_two_layers_keep_for_linear_cka_is_free_of_scale() -> None:
    x, y = gaussian(2, 12, 7), gaussian(2, 12, 5, seed=1)
    want = alignment(*(centred_products(Tokens(z)) for z in (x, y)))
    got = alignment(*(centred_products(Tokens(z)) for z in (1e-30 * x, 1e30 * y)))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.reads in ("tokens", "pair")])
def test_vmap_gives_what_a_loop_does(name: str) -> None:
    metric = METRICS[name]
    inputs = tuple(tensor.expand(4, *tensor.shape) * torch.arange(1.0, 5.0).view(4, 1, 1, 1) + 0.1
                   for tensor in inputs_for(metric, lambda x: x).inputs)  # fmt: skip
    want = torch.stack([metric.function(*(tensor[index] for tensor in inputs)) for index in range(4)])
    torch.testing.assert_close(torch.vmap(metric.function)(*inputs), want)
