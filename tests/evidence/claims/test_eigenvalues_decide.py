"""The rule on made-up numbers, and limits that one knows by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unsmooth.evidence import CLAIMS, Bench
from unsmooth.evidence.claims import eigenvalues_decide as subject
from unsmooth.theory import LIMITS, Prediction, predict
from unsmooth.theory.maps import causal_attention, cyclic_attention, drawn, uniform_attention, with_eigenvalues

CLAIM = CLAIMS["eigenvalues-decide"]
HALVES = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)  # eigenvalues 1 and 1/2


def _measured(right: int, wrong: int, far: float = 1e-13) -> dict[str, Any]:
    table: dict[str, dict[str, int]] = {name: {} for name in LIMITS}
    table["collinear"] = {"collinear": right, "no collapse": wrong}
    return {"table": table, "distance": [{"softmax": 1e-15, "causal": far}] * 3, "left_out": {"causal": 5}}


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        (_measured(2000, 2), "for"),
        (_measured(100, 0), "undecided"),
        (_measured(1000, 100), "against"),
        (_measured(2000, 2, far=1e-3), "against"),
    ],
)
def test_rule(measured: dict[str, Any], outcome: str) -> None:
    assert CLAIM.judge(measured).outcome == outcome
    assert len(CLAIM.figure(measured).panels) == 2


def test_gap_alone_decides_what_is_left_out() -> None:
    """Moduli 1.5 and 1.25: 1.2^127 is the first power above 1e10."""
    x, h = drawn(2, 3, seed=0), 0.5 * torch.eye(3, dtype=torch.float64)
    assert subject.limits(x, HALVES, h, 126) == ("input convergence", None)
    assert subject.limits(x, HALVES, h, 127) == ("input convergence", "input convergence")


@pytest.mark.parametrize(
    ("attention", "h", "limit"),
    [
        (uniform_attention(5), torch.eye(3), "input convergence"),  # 2 against 1
        (uniform_attention(5), -0.5 * torch.eye(3), "no collapse"),  # the mean goes, all else stays
        (uniform_attention(5), torch.diag(torch.tensor([-0.5, -2.5, -2.9])), "input convergence"),  # |−1.9| against 1
        (cyclic_attention(7), torch.diag(torch.tensor([-0.8, -0.3, -0.1])), "collinear"),
        (cyclic_attention(7), with_eigenvalues([-0.5 + 0.6j, -0.3, -0.1], seed=1), "rank two"),
        (causal_attention(3, seed=3), torch.diag(torch.tensor([-0.9, -0.6, -0.5])), "rank one"),
    ],
)
def test_limits_known_by_hand(attention: Tensor, h: Tensor, limit: str) -> None:
    h = h.double()
    assert subject.limits(drawn(len(attention), len(h), seed=2), attention, h, 5000) == (limit, limit)


def test_weights_without_eigenvectors_are_set_aside() -> None:
    jordan = torch.tensor([[0.5, 1.0], [0.0, 0.5]], dtype=torch.float64)
    assert subject.limits(drawn(2, 2, seed=0), HALVES, jordan, 1000) == (None, None)
    assert subject.spectral_distance(HALVES, jordan) is None


def test_distance_to_a_wrong_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    h = torch.diag(torch.tensor([2.0, -1.0], dtype=torch.float64))
    assert subject.spectral_distance(HALVES, h) == pytest.approx(0.0, abs=1e-14)
    kron = subject.np.kron
    monkeypatch.setattr(subject.np, "kron", lambda b, a: kron(b, a @ a))  # μ² instead of μ: 2 and 0.5 are 1.5 and 0.75
    assert subject.spectral_distance(HALVES, h) == pytest.approx(0.5 / 3.0)


def test_a_wrong_prediction_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_sign(attention: Tensor, h: Tensor) -> Prediction:
        return predict(attention, -h)

    monkeypatch.setattr(subject, "predict", other_sign)
    assert CLAIM.judge(CLAIM.measure(Bench(scale="tiny"))).outcome == "against"
