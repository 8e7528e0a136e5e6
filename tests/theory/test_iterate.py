"""The layer against plain numpy loops, closed forms and torch's own norms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from torch import Tensor

from unsmooth.theory import causal_attention, iterate, random_attention
from unsmooth.theory.maps import drawn, uniform_attention

N, D, DEPTH = 6, 5, 7
Floats = NDArray[np.float64]


def reference(x: Floats, maps: list[Floats], weights: list[Floats]) -> Floats:
    """X + Σ_h A_h X H_h, entry by entry."""
    out = x.copy()
    for attention, h in zip(maps, weights, strict=True):
        for i in range(len(x)):
            out[i] += sum(attention[i, j] * (x[j] @ h) for j in range(len(x)))
    return out


def many(heads: int, layers: int) -> tuple[list[Tensor], list[Tensor]]:
    maps = [
        torch.stack([random_attention(N, seed=100 * layer + head) for head in range(heads)]) for layer in range(layers)
    ]
    return maps, [0.3 * drawn(heads, D, D, seed=50 + layer) for layer in range(layers)]


@pytest.mark.parametrize("heads", [1, 3])
def test_layers_and_heads_against_a_loop(heads: int) -> None:
    maps, weights = many(heads, DEPTH)
    x = drawn(N, D, seed=1)
    run = iterate(x, maps, weights, depth=DEPTH, normalise=False)
    wanted = x.numpy()
    for layer in range(DEPTH):
        wanted = reference(wanted, list(maps[layer].numpy()), list(weights[layer].numpy()))
        assert_allclose(run.states_LND[layer + 1].numpy(), wanted, rtol=1e-11)
    assert run.depth == DEPTH


def test_sequence_function_and_fixed_agree() -> None:
    maps, weights = many(2, DEPTH)
    x = drawn(N, D, seed=2)
    by_sequence = iterate(x, maps, weights, depth=DEPTH)
    by_function = iterate(x, lambda layer: maps[layer], lambda layer: weights[layer], depth=DEPTH)
    assert torch.equal(by_sequence.states_LND, by_function.states_LND)
    fixed = iterate(x, maps[0], weights[0], depth=DEPTH)
    repeated = iterate(x, [maps[0]] * DEPTH, [weights[0]] * DEPTH, depth=DEPTH)
    assert torch.equal(fixed.states_LND, repeated.states_LND)


def test_rescaling_changes_nothing_but_the_scale() -> None:
    maps, weights = many(2, DEPTH)
    x = drawn(N, D, seed=3)
    scaled, raw = (iterate(x, maps, weights, depth=DEPTH, normalise=flag) for flag in (True, False))
    assert_allclose(scaled.log_norm, raw.states_LND.flatten(1).norm(dim=1).log(), rtol=1e-12)
    assert_allclose(raw.log_norm, scaled.log_norm, rtol=1e-12)
    assert_allclose((scaled.states_LND * scaled.log_norm.exp()[:, None, None]).numpy(), raw.states_LND, rtol=1e-11)
    for name in ("token_similarity", "mean_cosine", "mean_abs_cosine", "hfc_lfc", "second_singular", "third_singular"):
        assert_allclose(getattr(scaled, name), getattr(raw, name), rtol=1e-9, atol=1e-14)


def test_growth_far_beyond_overflow_is_kept() -> None:
    run = iterate(torch.ones(N, D), uniform_attention(N), 9.0 * torch.eye(D), depth=2000)
    assert_allclose(np.diff(run.log_norm.numpy()), np.log(10.0), rtol=1e-9)
    assert run.x_ND.isfinite().all()


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_norms_against_torch(place: str, kind: str) -> None:
    attention, h, gain = random_attention(N, seed=4), drawn(D, D, seed=5), drawn(D, seed=6)
    x = drawn(N, D, seed=7)

    def norm(tokens: Tensor) -> Tensor:
        if kind == "rms":
            return torch.nn.functional.rms_norm(tokens, (D,), gain, eps=0.0)
        return torch.nn.functional.layer_norm(tokens, (D,), gain, eps=0.0)

    run = iterate(x, attention, h, depth=3, norm=place, norm_weight=gain, norm_kind=kind, normalise=False)  # type: ignore[arg-type]
    for layer in range(3):
        x = x + attention @ norm(x) @ h if place == "pre" else norm(x + attention @ x @ h)
        assert_allclose(run.states_LND[layer + 1].numpy(), x.numpy(), rtol=1e-10, atol=1e-12)


def test_pre_norm_runs_at_the_true_scale() -> None:
    attention, h = random_attention(N, seed=8), -0.9 * torch.eye(D)
    x = drawn(N, D, seed=9)
    unit, raw = (iterate(7.0 * x, attention, h, depth=5, norm="pre", normalise=flag) for flag in (True, False))
    assert_allclose(unit.token_similarity, raw.token_similarity, rtol=1e-12)
    assert_allclose(unit.log_norm, raw.log_norm, rtol=1e-12)
    assert_allclose(unit.states_LND.flatten(1).norm(dim=1), 1.0, rtol=1e-12)
    other = iterate(0.01 * x, attention, h, depth=5, norm="pre")
    assert abs(other.token_similarity[1] - unit.token_similarity[1]) > 0.1


def test_norm_weight_per_layer() -> None:
    gains = [drawn(D, seed=20 + layer) for layer in range(3)]
    attention, h, x = random_attention(N, seed=10), drawn(D, D, seed=11), drawn(N, D, seed=12)
    together = iterate(x, attention, h, depth=3, norm="pre", norm_weight=gains, normalise=False)
    for gain in gains:
        x = iterate(x, attention, h, depth=1, norm="pre", norm_weight=gain, normalise=False).x_ND
    assert_allclose(together.x_ND, x, rtol=1e-12)


def test_a_token_without_variance_is_normed_to_zero() -> None:
    x = torch.tensor([[2.0, 2.0], [1.0, 3.0]])
    run = iterate(x, torch.eye(2), torch.eye(2), depth=1, norm="pre", normalise=False)
    assert_allclose(run.x_ND, [[2.0, 2.0], [0.0, 4.0]])


def test_numbers_against_numpy() -> None:
    run = iterate(drawn(N, D, seed=13), causal_attention(N, seed=14), 0.3 * drawn(D, D, seed=15), depth=4)
    for layer in range(5):
        x = run.states_LND[layer].numpy()
        mean = x.mean(axis=0)
        shared, spread = N * (mean @ mean), ((x - mean) ** 2).sum()
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        cosines = (unit @ unit.T)[~np.eye(N, dtype=bool)]
        singular = np.linalg.svd(x, compute_uv=False)
        assert_allclose(run.token_similarity[layer], shared / (shared + spread), rtol=1e-10)
        assert_allclose(run.hfc_lfc[layer], np.sqrt(spread / shared), rtol=1e-10)
        assert_allclose(run.mean_cosine[layer], cosines.mean(), rtol=1e-9, atol=1e-12)
        assert_allclose(run.mean_abs_cosine[layer], np.abs(cosines).mean(), rtol=1e-9)
        assert_allclose(run.second_singular[layer], singular[1] / singular[0], rtol=1e-9)
        assert_allclose(run.third_singular[layer], singular[2] / singular[0], rtol=1e-9)


def test_ratios_where_there_is_no_second_or_third_direction() -> None:
    one = iterate(torch.tensor([[1.0], [2.0]]), torch.eye(2), torch.eye(1), depth=1)
    assert one.second_singular.tolist() == [0.0, 0.0]
    assert one.third_singular.tolist() == [0.0, 0.0]


def test_float64_from_any_type_and_inputs_untouched() -> None:
    x, attention, h = drawn(N, D, seed=16).half(), random_attention(N, seed=17).float(), torch.eye(D).bfloat16()
    before = x.clone()
    run = iterate(x, attention, h, depth=2)
    assert run.x_ND.dtype == run.token_similarity.dtype == torch.float64
    assert torch.equal(x, before)


def test_depth_zero_is_the_input() -> None:
    x = drawn(N, D, seed=18)
    run = iterate(x, torch.eye(N), torch.eye(D), depth=0, normalise=False)
    assert torch.equal(run.x_ND, x)
    assert run.depth == 0


def test_frame_has_one_row_per_layer() -> None:
    run = iterate(drawn(N, D, seed=19), torch.eye(N), torch.eye(D), depth=3)
    frame = run.to_frame()
    assert frame["layer"].tolist() == [0, 1, 2, 3]
    assert frame["token_similarity"].tolist() == run.token_similarity.tolist()
    assert "states_LND" not in frame


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_streams_whose_squares_leave_the_range_of_numbers(scale: float) -> None:
    x, attention, h = drawn(N, D, seed=21), random_attention(N, seed=22), drawn(D, D, seed=23)
    plain = iterate(x, attention, h, depth=3)
    for normalise in (True, False):
        scaled = iterate(scale * x, attention, h, depth=3, normalise=normalise)
        assert_allclose(scaled.token_similarity, plain.token_similarity, rtol=1e-9)
        assert_allclose(scaled.log_norm, plain.log_norm + np.log(scale), rtol=1e-12)
