"""The rule on made-up numbers, and the measurement against numpy and the circular law."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from unsmooth.evidence import CLAIMS
from unsmooth.evidence import run as _run  # noqa: F401 - registers the claims
from unsmooth.evidence.claims.second_eigenvalue_falls import SEED_OF_MAPS, _initialised, _of_size, radius

CLAIM = CLAIMS["second-eigenvalue-falls"]
SIZES = [16, 64, 256, 1024]


def _measured(exponent: float = -0.5, factor: float = 1.0, noise: float = 0.01) -> dict[str, Any]:
    """|λ₂| with this exponent, equal to the formula times `factor` at the largest n; σ = 2 is off whatever happens."""
    signs = (-1, 0, 1)

    def at(std: float, n: int) -> dict[str, list[float]]:
        value = factor * radius(std, SIZES[-1]) * (n / SIZES[-1]) ** (exponent if std < 2 else -0.2)
        # Some noise in the slope, none at small n, which the rule does not look at.
        seconds = [value * (n / 64) ** (noise * sign) if n >= 64 else 1.0 for sign in signs]
        return {"second": seconds, "norm": [2 * one for one in seconds]}

    random = {f"{std:g}": [at(std, n) for n in SIZES] for std in (0.25, 0.5, 1.0, 2.0)}
    return {"sizes": SIZES, "random": random, "initialised": [{"std": 1.0, "second": 0.2, "over": 1.1}] * 2}


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, "for"),
        ({"exponent": -0.3}, "against"),
        ({"exponent": -0.7}, "against"),
        ({"factor": 1.4}, "against"),
        ({"noise": 0.1}, "undecided"),
    ],
)
def test_rule(changed: dict[str, float], outcome: str) -> None:
    measured = _measured(**changed)
    assert CLAIM.judge(measured).outcome == outcome
    assert all(len(series.x) == len(series.y) for panel in CLAIM.figure(measured).panels for series in panel.series)


def test_exponent_is_fitted_from_64_tokens_on() -> None:
    found = CLAIM.judge(_measured(exponent=-0.5)).findings
    assert [one.interval.value for one in found[:4]] == pytest.approx([-0.5, -0.5, -0.5, -0.2])
    assert found[3].outcome is None


def test_second_eigenvalue_against_numpy() -> None:
    found = _of_size(1.0, 24, (3,), maps=2)
    seconds, norms = [], []
    for one in range(2):
        generator = torch.Generator().manual_seed(SEED_OF_MAPS + 3000 + one)
        weights = np.exp(torch.randn(24, 24, generator=generator, dtype=torch.float64).numpy())
        attention = weights / weights.sum(axis=1, keepdims=True)
        seconds.append(sorted(abs(np.linalg.eigvals(attention)))[-2])
        centring = np.eye(24) - 1 / 24
        norms.append(np.linalg.svd(centring @ attention @ centring)[1][0])
    assert found["second"] == pytest.approx([np.mean(seconds)])
    assert found["norm"] == pytest.approx([np.mean(norms)])


def test_radius_is_that_of_the_circular_law() -> None:
    """√(n Var) with the variance of an entry of softmax attention, by sampling."""
    n, std = 400, 0.5
    weights = np.exp(std * np.random.default_rng(0).standard_normal((n, n)))
    attention = weights / weights.sum(axis=1, keepdims=True)
    assert radius(std, n) == pytest.approx(math.sqrt(n * attention.var()), rel=0.02)


def test_initialised_network() -> None:
    """Logits of queries and keys by Glorot's weights on normed tokens have a standard deviation near 1."""
    found = _initialised(0)
    assert 0.7 < found["std"] < 1.2
    assert found["over"] == pytest.approx(found["second"] / math.sqrt(math.expm1(found["std"] ** 2) / 65))
