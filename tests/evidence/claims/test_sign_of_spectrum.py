"""The rule on made-up numbers; counts, margins and turning points against closed forms."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import pytest
import torch

from unsmooth.evidence import CLAIMS
from unsmooth.evidence.claims import _one_layer, sign_of_spectrum
from unsmooth.evidence.claims import sign_of_spectrum as subject
from unsmooth.evidence.claims._random_layers import basis, generator
from unsmooth.theory.maps import drawn, random_attention, uniform_attention

CLAIM = CLAIMS["sign-of-spectrum"]


def _measured(of: int, by_eigenvalues: int = 0, by_running: int = 0, missed: int = 0) -> dict[str, Any]:
    clean = {"drawn": of, "by_eigenvalues": 0, "run": of, "by_running": 0, "left_out": 3}
    return {
        "signs": {
            "negative": {**clean, "by_running": by_running},
            "positive": {**clean, "by_eigenvalues": by_eigenvalues},
        },
        "margins": {"value": [-0.5, 0.5], "lowest": [-0.2, 0.1], "highest": [-0.1, 0.2]},
        "pre_norm": {
            "change": {sign: [[0.1] * len(subject.SCALES)] * 2 for sign in subject.SPECTRA},
            "missed": missed,
            "checked": of,
            "log_ratio": [0.1, -0.1],
            "turns": [9, 10],
        },
        "heads": {"2 opposed heads": [4, 5]},
        "far_from_normal": {"higher": {"0": [0, 5], "4": [4, 5]}, "curve": {"0": [0.1, 0.1], "4": [0.1, 0.5]}},
    }


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        (_measured(1000), "for"),
        (_measured(30), "undecided"),
        (_measured(1000, by_eigenvalues=1), "against"),
        (_measured(1000, by_running=1), "against"),
        (_measured(1000, missed=1), "against"),
    ],
)
def test_rule(measured: dict[str, Any], outcome: str) -> None:
    assert CLAIM.judge(measured).outcome == outcome
    assert len(CLAIM.figure(measured).panels) == 3


def test_no_violations_where_theory_allows_none() -> None:
    for counts in subject.count_signs([0], most_layers=400).values():
        assert counts["drawn"] == 12
        assert counts["run"] + counts["left_out"] == 12
        assert counts["run"] > 5
        assert counts["by_eigenvalues"] == counts["by_running"] == 0


def test_spectra_beyond_the_interval_are_counted_as_violations(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ below −2/(1 + m) lets the mean dominate again, since m > −1: |1 − 4| against |1 − 4μ|."""
    monkeypatch.setattr(subject, "SPECTRA", {"negative": (-5.0, -4.0)})
    found = subject.count_signs([0, 1], most_layers=400)["negative"]
    assert found["by_eigenvalues"] > 5
    assert found["by_running"] > 5


def test_margins_of_averaging_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """All other μ are 0, so the margin is log |1 + λ|."""
    monkeypatch.setattr(subject, "ATTENTION", {"averaging": lambda random: uniform_attention(5)})
    found = subject.margins([0])
    wanted = [log(abs(1.0 + value)) for value in found["value"]]
    assert np.allclose(found["lowest"], wanted)
    assert np.allclose(found["highest"], wanted)


def test_scale_at_which_averaging_turns() -> None:
    """Tokens of unit scale and H = −0.9I: the mean is multiplied by 1 − 0.9/s, whose modulus is 1 at s = 0.45."""
    x = drawn(6, 8, seed=0) + drawn(1, 8, seed=1)
    x = x - x.mean(dim=1, keepdim=True)
    x = x / x.square().mean(dim=1, keepdim=True).sqrt()
    h = -0.9 * torch.eye(8, dtype=torch.float64)
    found = _one_layer.turning(x, _one_layer.branch(x, uniform_attention(6), h))
    assert found.scale == pytest.approx(0.45)
    assert found.rises(0.44)
    assert not found.rises(0.46)
    assert subject._by_eigenvalues(uniform_attention(6), h) == pytest.approx(0.45)


def test_turning_against_t_sim_itself() -> None:
    def similarity(x: np.ndarray[Any, Any]) -> float:
        return float(len(x) * np.square(x.mean(axis=0)).sum() / np.square(x).sum())

    for seed in range(30):
        x, b = drawn(5, 4, seed=2 * seed).numpy(), drawn(5, 4, seed=2 * seed + 1).numpy()
        found = _one_layer.turning(torch.from_numpy(x), torch.from_numpy(b))
        for scale in (0.1, 0.5, 2.0, 10.0):
            for sign in (1.0, -1.0):
                assert found.rises(scale, sign) == (similarity(scale * x + sign * b) > similarity(x))


def test_pre_norm_layers_follow_the_closed_form() -> None:
    found = subject.pre_norm([0, 1], draws=2)
    assert found["missed"] == 0
    assert found["checked"] == 8
    smallest, largest = np.array(found["change"]["negative"])[:, [0, -1]].T
    assert (smallest > 0).all()
    assert (largest < 0).all()


def test_fed_weights_keep_their_eigenvalues() -> None:
    values = torch.tensor([-1.0, -0.6, -0.2], dtype=torch.float64)
    h = sign_of_spectrum.fed(basis(generator(0), 3), values, 4.0).numpy()
    assert np.allclose(np.sort(np.linalg.eigvals(h).real), values.numpy(), atol=1e-6)
    assert np.linalg.norm(h, 2) > 4.0


def test_opposed_heads_are_positive_alone_and_lose_the_mean_together() -> None:
    maps, weights = sign_of_spectrum.opposed_heads(generator(1))
    for h in weights.numpy():
        values = np.linalg.eigvals(h)
        assert values.real.min() > 0.0
        assert np.abs(values.imag).max() < 1e-6
    whole = np.eye(24) + sum(np.kron(h.T, a) for a, h in zip(maps.numpy(), weights.numpy(), strict=True))
    mean = np.abs(np.linalg.eigvals(np.eye(4) + weights.numpy().sum(axis=0))).max()
    assert np.abs(np.linalg.eigvals(whole)).max() > mean + 0.01
    found = sign_of_spectrum.count_heads([0], draws=1)
    assert found["2 opposed heads"] == [1, 1]
    assert found[sign_of_spectrum.ALONE] == [0, 2]


def test_feeding_directions_raise_t_sim_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_of_spectrum, "random_attention", lambda n, **_: random_attention(n, seed=0, logit_std=0.3))
    found = sign_of_spectrum.count_far_from_normal([0], draws=3)
    assert max(found["curve"]["4"]) > 0.5 > max(found["curve"]["0"])
    assert found["curve"]["4"][-1] < 0.2
