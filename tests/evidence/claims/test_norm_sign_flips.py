"""The rule on made-up numbers; directions against plain numpy, and networks against what negation must leave alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unsmooth.evidence import CLAIMS
from unsmooth.evidence.claims import norm_sign_flips
from unsmooth.evidence.claims import norm_sign_flips as subject
from unsmooth.models import demo
from unsmooth.networks import ViT
from unsmooth.theory.maps import uniform_attention

CLAIM = CLAIMS["norm-sign-flips"]
Array = NDArray[np.float64]


def _measured(of: int, one: int, many: int, missed: int = 0) -> dict[str, Any]:
    curves = [{"as it is": [0.1, 0.3], "negated": [0.1, 0.2]}] * 2
    return {
        "one_layer": {"0.02": [0, of], "1": [one, of]},
        "many_layers": {"0.02": [of, of], "1": [many, of]},
        "missed": [missed, of],
        "fractions": {"0": [0, of], "0.5": [of // 2, of], "1": [of, of]},
        "post_norm_same": [of, of],
        "no_sign": [of // 2, of],
        "networks": {"plain": curves},
        "trained": None,
    }


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        (_measured(500, 499, 490), "for"),
        (_measured(500, 475, 490), "undecided"),
        (_measured(20, 20, 20), "undecided"),
        (_measured(500, 250, 490), "against"),
        (_measured(500, 499, 250), "against"),
        (_measured(500, 499, 490, missed=1), "against"),
    ],
)
def test_rule(measured: dict[str, Any], outcome: str) -> None:
    assert CLAIM.judge(measured).outcome == outcome
    assert len(CLAIM.figure(measured).panels) == 3


def test_trained_models_are_reported_where_they_are() -> None:
    measured = _measured(500, 499, 490)
    measured["trained"] = measured["networks"]
    found = [one for one in CLAIM.judge(measured).findings if one.what.startswith("trained")]
    assert [one.interval.value for one in found] == pytest.approx([-0.1])
    assert CLAIM.figure(measured).panels[2].title == "trained ViT"


def _similarity(x: Array) -> float:
    return float(len(x) * np.square(x.mean(axis=0)).sum() / np.square(x).sum())


def _normed(x: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return np.asarray(centred / centred.std(axis=1, keepdims=True))


def test_counts_against_layers_written_out() -> None:
    """Pre-norm and post-norm in numpy, at two scales and both signs."""
    layers = list(subject._layers([3], draws=4))
    found = subject.by_scale(layers)
    for scale in (0.02, 1.0):
        hits = 0
        for layer in layers:
            x, a, h, weight = (one.numpy() for one in (layer.x, layer.attention, layer.h, layer.weight))
            x = scale * x
            plus, minus = (_similarity(x + a @ (sign * weight * _normed(x)) @ h) for sign in (1.0, -1.0))
            up, down = (plus, minus) if layer.smooths else (minus, plus)
            hits += up > _similarity(x) > down
        assert found["one_layer"][f"{scale:g}"] == [hits, 4]
    assert found["missed"] == [0, 4]
    assert found["one_layer"]["1"] == [4, 4]


def test_spectrum_of_the_folded_weights_is_negated() -> None:
    layer = next(subject._layers([0], draws=1))
    centring = np.eye(subject.DIM) - 1.0 / subject.DIM
    plus, minus = (
        np.sort(np.linalg.eigvals(centring @ np.diag(sign * layer.weight.numpy()) @ layer.h.numpy()).real)
        for sign in (1.0, -1.0)
    )
    assert np.allclose(plus, -minus[::-1])
    assert (plus > -1e-12).all()


def test_a_wrong_sign_is_no_turn() -> None:
    assert subject._turned([0.1, 0.2], [0.1, 0.05], smooths=True)
    assert not subject._turned([0.1, 0.2], [0.1, 0.05], smooths=False)
    assert not subject._turned([0.1, 0.2], [0.1, 0.15], smooths=True)


def test_no_channel_negated_turns_nothing_and_all_turn_what_one_layer_turns() -> None:
    found = subject.by_fraction(list(subject._layers([1], draws=4)))
    assert found["0"] == [0, 4]
    assert found["1"] == [4, 4]


def test_post_norm_is_blind_to_the_sign_and_the_count_would_see_otherwise() -> None:
    layers = list(subject._layers([2], draws=2))
    assert subject.post_norm(layers) == [2, 2]
    # Another |γ| does change t_sim, by more than what counts as the same.
    weight = torch.ones(subject.DIM, dtype=torch.float64)
    plus = subject._similarity(layers[0], weight, norm="post")
    other = subject._similarity(layers[0], layers[0].weight, norm="post")
    assert max(abs(a - b) for a, b in zip(plus, other, strict=True)) > subject.SAME


def test_small_streams_go_one_way_with_either_sign() -> None:
    """Averaging attention makes the branch wholly alike: at scale 0.02 t_sim rises whatever the sign."""
    layer = next(subject._layers([0], draws=1))
    layer = replace(layer, attention=uniform_attention(len(layer.x)))
    for sign in (1.0, -1.0):
        before, after = subject._similarity(layer, sign * layer.weight, scale=0.02, layers=1)
        assert after > before


def test_negating_twice_and_attention_without_biases() -> None:
    """Queries and keys change sign together: the first block's attention stays, its branch is negated."""
    model = ViT(norm_sign_flips.VIT, seed=0).eval()
    block = next(one for one in model.modules() if isinstance(one, norm_sign_flips.Block))
    x = torch.randn(2, 5, norm_sign_flips.VIT.dim, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = block.attention(block.read(x))
        norm_sign_flips.negate_attention_norms(model)
        assert torch.allclose(block.attention(block.read(x)), -before, atol=1e-6)
        norm_sign_flips.negate_attention_norms(model)
        assert torch.equal(block.attention(block.read(x)), before)


def test_sharpened_and_smoothed_networks_change_places() -> None:
    found = norm_sign_flips.drawn_networks([0])
    last = {(variant, which): curve[-1] for variant, (one,) in found.items() for which, curve in one.items()}
    assert last["sharpen", "as it is"] < last["plain", "as it is"] < last["sharpen", "negated"]
    assert last["smooth", "negated"] < last["plain", "as it is"] < last["smooth", "as it is"]


def test_without_demo_models_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "built", lambda: False)
    assert norm_sign_flips.trained_networks(1) is None


def test_trained_models_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a drawn network in place of the trained ones."""
    size = (3, norm_sign_flips.VIT.image, norm_sign_flips.VIT.image)
    monkeypatch.setattr(demo, "built", lambda: True)
    monkeypatch.setattr(demo, "shown", lambda name, count: torch.ones(count, *size))
    monkeypatch.setattr(norm_sign_flips, "load", lambda name: ViT(norm_sign_flips.VIT, seed=0).eval())
    found = norm_sign_flips.trained_networks(2)
    assert found is not None
    assert {name: len(batches) for name, batches in found.items()} == dict.fromkeys(demo.NAMES, 2)
    first, second = found["plain"]
    assert first == second  # negating was taken back in between
    assert len(first["negated"]) == norm_sign_flips.VIT.depth + 1
