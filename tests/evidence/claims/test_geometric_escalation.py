"""The rule on made-up numbers, and the measurement against numpy and cases one can work out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from unsmooth.evidence import CLAIMS
from unsmooth.evidence import run as _run  # noqa: F401 - registers the claims
from unsmooth.evidence.escalation import (
    MAPS,
    Cell,
    Stack,
    attention,
    bound,
    closed_form,
    decay,
    line,
    mean_rate,
    one_step,
    second_modulus,
    slack,
    tokens_with,
)

CLAIM = CLAIMS["geometric-escalation"]


def _measured(
    rate: float = 0.2, excess: float = 0.05, slope: float = 1.0, halves: float = 1.0, spread: float = 0.001
) -> dict[str, Any]:
    def around(value: float) -> list[float]:
        return [value - spread, value, value + spread]

    cells = [
        {"map": "lazy", "value": 0.3, "tokens": 16, "similarity": similarity, "closed": 0.2, "slack": 0.01}
        | {"rate": around(0.2), "excess": around(0.05)}
        for similarity in (0.3, 0.6)
    ]
    cells[1] |= {"rate": around(rate), "excess": around(excess)}
    plain = {"fit": [1.0, 1.0, 1.0], "curve": [0.9, 0.1]}
    stacks = [
        {"name": "lazy 0.5", "asked": True, "rate": around(slope), "halves": around(halves), **plain},
        {"name": "other", "asked": False, "rate": around(3.0), "halves": around(3.0), **plain},
    ]
    rest = {key: around(1.0) for key in ("norm", "second", "any", "chosen")}
    return {"width": 64, "cells": cells, "stacks": stacks, "against_the_norm": rest}


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, "for"),
        ({"excess": -0.015}, "for"),  # within twice the slack of 0.01
        ({"excess": -0.03}, "against"),
        ({"rate": -0.1}, "against"),
        ({"slope": 0.5}, "against"),
        ({"halves": 0.5}, "against"),
        ({"spread": 1.0}, "undecided"),
    ],
)
def test_rule(changed: dict[str, float], outcome: str) -> None:
    measured = _measured(**changed)
    assert CLAIM.judge(measured).outcome == outcome
    assert all(len(series.x) == len(series.y) for panel in CLAIM.figure(measured).panels for series in panel.series)


def test_one_cell_is_enough_to_refute() -> None:
    judged = CLAIM.judge(_measured(excess=-0.5))
    assert judged.findings[0].outcome == "for"
    assert judged.findings[1].outcome == "against"
    assert "s = 0.6" in judged.findings[1].what


def test_rate_against_plain_sampling_in_numpy() -> None:
    """Many draws, no correction for noise, energies written out."""
    n, d, similarity, modulus, draws = 8, 32, 0.4, 0.5, 4000
    x = tokens_with(similarity, n, d, seed=3).numpy()
    uniform = np.full((n, n), 1 / n)
    mixed = (modulus * np.eye(n) + (1 - modulus) * uniform) @ x
    weights = np.random.default_rng(0).standard_normal((draws, d, d)) / math.sqrt(d)
    after = x + mixed @ weights
    rest = ((after - after.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2)) / (after**2).sum(axis=(1, 2))
    rates = 1 - rest / (1 - similarity)
    wanted, error = rates.mean(), rates.std() / math.sqrt(draws)
    found = mean_rate(torch.from_numpy(x), attention("lazy", modulus, n, 0), torch.from_numpy(weights[:500]))
    assert found == pytest.approx(wanted, abs=4 * error)


def test_noise_taken_off_leaves_wide_layers_at_the_closed_form() -> None:
    [cell] = one_step([Cell("cyclic", 0.6, 8, 0.5)], range(2), 512, 4)
    assert cell["rate"] == pytest.approx([closed_form(0.5, 0.6)] * 2, rel=0.02)
    assert cell["excess"] == pytest.approx([rate - 0.16 for rate in cell["rate"]])


def test_closed_forms() -> None:
    """A map that shares everything leaves differences as they are and doubles the energy of the mean."""
    assert closed_form(0.5, 0.0) == pytest.approx(1 - (0.5 / 1.5) / 0.5)
    assert bound(0.7, 1.0) == closed_form(0.7, 1.0) == 0.0
    for similarity in (0.01, 0.5, 0.99):
        for second in (0.0, 0.5, 0.99):
            assert bound(similarity, second) <= closed_form(similarity, second)


def test_slack_is_what_the_mean_of_a_ratio_loses() -> None:
    """At s → 1 the rest over the mean's energy, E[2/|e + eW|²] with |e + eW|² of noncentral χ²: by sampling."""
    d, draws = 20, 200_000
    drawn = np.random.default_rng(1).standard_normal((draws, d)) / math.sqrt(d)
    drawn[:, 0] += 1
    loss = (1 / (drawn**2).sum(axis=1)).mean() - 0.5  # of a rate 1 − E[1/A] with EA = 2, where |λ₂| = 0
    assert slack(1.0, 0.0, d) == pytest.approx(loss, rel=0.1)


def test_second_modulus_against_numpy() -> None:
    found = attention("softmax", 1.0, 12, MAPS)
    moduli = sorted(np.abs(np.linalg.eigvals(found.numpy())))
    assert second_modulus("softmax", 1.0, found) == pytest.approx(moduli[-2], rel=1e-9)
    for kind in ("lazy", "cyclic"):
        built = sorted(np.abs(np.linalg.eigvals(attention(kind, 0.6, 7, 0).numpy())))
        assert built == pytest.approx([0.6] * 6 + [1.0])


def test_line_sees_what_is_not_geometric() -> None:
    slope, fit, halves = line([0.4 * 0.5**layer for layer in range(30)])
    assert (slope, fit, halves) == pytest.approx((math.log(0.5), 1.0, 1.0))
    assert line([1 / layer**2 for layer in range(2, 60)])[2] < 0.5
    assert line([0.4 * 0.5 ** (1.3**layer) for layer in range(12)])[2] > 2.0


@pytest.mark.parametrize("stack", [Stack("lazy", 0.5), Stack("cyclic", 0.5), Stack("lazy", 0.5, residual=False)])
def test_decay_at_the_rate_of_the_gap(stack: Stack) -> None:
    found = decay(stack, (0,), 192, 8)
    assert found["rate"] == pytest.approx([1.0], abs=0.1)
    assert found["fit"][0] > 0.99
    wanted = 0.25 if not stack.residual else 0.625
    steps = np.diff(np.log(found["curve"][-12:]))
    assert steps.mean() == pytest.approx(math.log(wanted), rel=0.15)
