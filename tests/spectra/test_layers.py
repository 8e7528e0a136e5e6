"""Whole layers and stacks: many heads, norms folded in, depth."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

from tests.spectra.references import (
    causal_maps,
    full_operator,
    head_products,
    random_maps,
    random_weights,
    spectrum_distance,
)
from unsmooth.errors import UnsmoothError
from unsmooth.spectra import LayerOperator, head_dominance, layer_dominance, norm_factor, stack_growth


def norm(d: int) -> torch.Tensor:
    weight = torch.linspace(-0.5, 1.5, d, dtype=torch.float64)
    return norm_factor(weight, weight, True, 0.8)


@pytest.mark.parametrize("maps", [random_maps(3, 5, temperature=2.0), causal_maps(3, 5)])
@pytest.mark.parametrize("post", [False, True])
def test_spectrum_of_the_whole_operator_is_that_of_mean_and_rest(maps: torch.Tensor, post: bool) -> None:
    w_v, w_o = random_weights(3, 4, 2)
    right = norm(4) if post else None
    layer = LayerOperator(maps, w_v, w_o, right=right)
    whole = full_operator(maps, head_products(w_v, w_o), None if right is None else right.numpy())
    parts = [numpy.linalg.eigvals(part.numpy()) for part in (layer.mean_matrix(), layer.rest_matrix())]
    assert spectrum_distance(numpy.concatenate(parts), numpy.linalg.eigvals(whole)) < 1e-6
    found = layer_dominance(maps, w_v, w_o, right=right)
    assert found.mean_modulus == pytest.approx(numpy.abs(parts[0]).max(), abs=1e-6)
    assert found.rest_modulus == pytest.approx(numpy.abs(parts[1]).max(), abs=1e-6)


def test_left_factor_is_folded_into_every_head() -> None:
    maps, (w_v, w_o) = random_maps(2, 4), random_weights(2, 5, 2)
    factor = norm(5)
    folded = layer_dominance(maps, factor @ w_v, w_o)
    given = layer_dominance(maps, w_v, w_o, left=factor)
    assert (given.mean_modulus, given.rest_modulus) == pytest.approx((folded.mean_modulus, folded.rest_modulus))


def test_one_head_of_full_width_is_the_head_rule() -> None:
    maps, (w_v, w_o) = random_maps(1, 6, temperature=3.0), random_weights(1, 4, 4)
    values = torch.linalg.eigvals(w_v[0] @ w_o[0])[None]
    head = head_dominance(maps, values, full_rank=True, modes=True)[0]
    layer = layer_dominance(maps, w_v, w_o)
    assert (layer.mean_modulus, layer.rest_modulus) == pytest.approx((head.mean_modulus, head.rest_modulus))
    assert layer.verdict == head.verdict


def test_heads_that_each_smooth_may_sharpen_together() -> None:
    # One head keeps tokens, one swaps them: μ = ±0.9. On the rest I + 0.9 (H₁ − H₂) has the eigenvalue 1 + 0.9·c·b,
    # on the mean I + H₁ + H₂ has 1 + 2c ± i·c·b.
    c, b = 0.05, 10.0
    maps = torch.tensor([[[0.95, 0.05], [0.05, 0.95]], [[0.05, 0.95], [0.95, 0.05]]], dtype=torch.float64)
    products = c * torch.tensor([[[1.0, b], [0.0, 1.0]], [[1.0, 0.0], [-b, 1.0]]], dtype=torch.float64)
    alone = head_dominance(maps, torch.full((2, 2), c), full_rank=True)
    assert alone.verdict == ("smoothing", "smoothing")
    together = layer_dominance(maps, torch.eye(2).double().expand(2, 2, 2), products)
    assert together.mean_modulus == pytest.approx(abs(1 + 2 * c + 1j * c * b))
    assert together.rest_modulus == pytest.approx(1 + 0.9 * c * b)
    assert together.verdict == "sharpening"
    assert together.token_eigenvalue is None
    assert together.mode_cosine == pytest.approx(-1.0)


def test_large_layers_through_products_alone() -> None:
    maps, (w_v, w_o) = random_maps(3, 30, temperature=4.0), random_weights(3, 24, 8)
    for right in (None, norm(24)):
        layer = LayerOperator(maps, w_v, w_o, right=right)
        values = numpy.linalg.eigvals(layer.rest_matrix().numpy())
        best = numpy.abs(values).argmax()
        found = layer_dominance(maps, w_v, w_o, right=right, accurate=True, tolerance=1e-5)
        assert found.route in {"arnoldi", "ritz"}
        assert found.rest_modulus == pytest.approx(abs(values[best]), rel=1e-3)
        assert found.mean_modulus == pytest.approx(
            numpy.abs(numpy.linalg.eigvals(layer.mean_matrix().numpy())).max(), rel=1e-6
        )


def test_first_look_at_large_layers_gives_the_verdict_of_all_eigenvalues() -> None:
    for seed in range(6):
        w_v, w_o = random_weights(3, 24, 8, seed)
        # From clearly sharpening to clearly smoothing.
        w_o = w_o + (seed - 3) * 0.3 * w_v.mT
        maps = random_maps(3, 30, seed, temperature=4.0)
        layer = LayerOperator(maps, w_v, w_o)
        mean, rest = (
            numpy.abs(numpy.linalg.eigvals(part.numpy())).max() for part in (layer.mean_matrix(), layer.rest_matrix())
        )
        found = layer_dominance(maps, w_v, w_o)
        assert found.verdict == ("smoothing" if mean > rest else "sharpening")
        assert found.rest_modulus == pytest.approx(rest, rel=0.05)


def test_mode_of_a_large_sharpening_layer() -> None:
    # H = -0.6 I and attention that swaps halves: the mode has one half opposite to the other.
    n, d = 40, 24
    sign = torch.cat([torch.ones(n // 2), -torch.ones(n // 2)])
    maps = ((1.0 - 0.8 * sign[:, None] * sign[None]) / n)[None]
    found = layer_dominance(maps, torch.eye(d)[None], -0.6 * torch.eye(d)[None])
    assert found.mean_modulus == pytest.approx(0.4, abs=1e-5)
    assert found.rest_modulus == pytest.approx(1 + 0.8 * 0.6, rel=1e-3)
    assert found.mode_cosine == pytest.approx(-1 / (n - 1), abs=1e-3)


def test_token_scales() -> None:
    maps, (w_v, w_o) = random_maps(2, 4), random_weights(2, 3, 2)
    equal = layer_dominance(maps, w_v, w_o, token_scale=torch.full((4,), 0.5))
    folded = layer_dominance(maps, 0.5 * w_v, w_o)
    assert (equal.mean_modulus, equal.rest_modulus) == pytest.approx((folded.mean_modulus, folded.rest_modulus))
    unequal = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
    with pytest.raises(UnsmoothError, match="one `token_scale` for all"):
        layer_dominance(maps, w_v, w_o, token_scale=unequal)
    layer = LayerOperator(maps, w_v, w_o, token_scale=unequal, allow_unnormalised=True)
    # The blocks of the whole map on its mean and its rest; what leads from one to the other is left out.
    whole = full_operator(maps * unequal, head_products(w_v, w_o))
    basis = numpy.linalg.qr(numpy.concatenate([numpy.ones((4, 1)), numpy.eye(4)[:, 1:]], axis=1))[0]
    turned = numpy.kron(numpy.eye(3), basis).T @ whole @ numpy.kron(numpy.eye(3), basis)
    equal_tokens = numpy.arange(12) % 4 == 0
    for part, block in ((equal_tokens, layer.mean_matrix()), (~equal_tokens, layer.rest_matrix())):
        wanted = numpy.linalg.eigvals(turned[numpy.ix_(part, part)])
        assert spectrum_distance(numpy.linalg.eigvals(block.numpy()), wanted) < 1e-9


def test_stack_growth_against_the_product_of_layers() -> None:
    layers, means, rests = [], numpy.eye(3), numpy.eye(12)
    for seed in range(4):
        w_v, _ = random_weights(2, 3, 2, seed)
        # Symmetric heads: one real eigenvalue leads, so the growth settles soon.
        layers.append(LayerOperator(random_maps(2, 5, seed), w_v, w_v.mT * (1 + seed) / 4))
        means = means @ layers[-1].mean_matrix().numpy()
        rests = rests @ layers[-1].rest_matrix().numpy()
    mean, rest = stack_growth(layers, passes=60)
    for found, product in ((mean, means), (rest, rests)):
        assert found == pytest.approx(math.log(numpy.abs(numpy.linalg.eigvals(product)).max()) / 4, abs=1e-3)


def test_stack_of_negative_halves_lets_the_mean_shrink_and_keeps_the_rest() -> None:
    eye = torch.eye(4)[None]
    for maps in (random_maps(1, 8).float(), causal_maps(1, 8).float()):
        mean, rest = stack_growth([LayerOperator(maps, eye, -0.5 * eye)] * 6)
        assert mean == pytest.approx(math.log(0.5), abs=1e-6)
        assert rest > mean
        mean, rest = stack_growth([LayerOperator(maps, eye, 0.5 * eye)] * 6)
        assert mean == pytest.approx(math.log(1.5), abs=1e-6)
        assert rest < mean


def test_a_stack_that_dies_out() -> None:
    maps, eye = torch.full((1, 2, 2), 0.5), torch.eye(2)[None]
    mean, rest = stack_growth([LayerOperator(maps, eye, -eye)])
    assert mean == -math.inf
    assert rest == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LayerOperator(random_maps(2, 3), *random_weights(3, 4, 2)), "3 heads"),
        (lambda: LayerOperator(random_maps(1, 3), *random_weights(1, 4, 2), right=torch.eye(3)), "`right` of shape"),
        (lambda: LayerOperator(random_maps(1, 3), *random_weights(1, 4, 2), token_scale=torch.ones(2)), "token_scale"),
        (lambda: LayerOperator(0.5 * random_maps(1, 3), *random_weights(1, 4, 2)), "sum to 1"),
        (lambda: stack_growth([]), "a layer or more"),
        (
            lambda: stack_growth([LayerOperator(random_maps(1, n), *random_weights(1, 4, 2)) for n in (3, 4)]),
            "equal token count",
        ),
    ],
)
def test_bad_layers_are_told(call, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        call()
