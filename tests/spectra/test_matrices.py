"""Eigenvalues and shape of value-output products, and norms folded into them."""

from __future__ import annotations

import numpy
import pytest
import torch

from tests.spectra.references import head_products, random_weights, spectrum_distance
from unsmooth.errors import UnsmoothError
from unsmooth.spectra import (
    asymmetry,
    eigenvalues,
    eigenvector_condition,
    extreme_modulus,
    flip_scale,
    fold_post_norm,
    fold_pre_norm,
    head_eigenvalues,
    head_shape,
    norm_factor,
    numerical_range,
    summed_product,
)


@pytest.mark.parametrize(("d", "d_h"), [(12, 3), (5, 5), (4, 7)])
def test_head_eigenvalues_are_those_of_the_whole_product(d: int, d_h: int) -> None:
    w_v, w_o = random_weights(6, d, d_h)
    found = head_eigenvalues(w_v.float(), w_o.float())
    for head, product in enumerate(head_products(w_v.float(), w_o.float())):
        wanted = numpy.linalg.eigvals(product)
        padded = numpy.concatenate([found[head].numpy(), numpy.zeros(max(d - d_h, 0))])
        assert spectrum_distance(padded, wanted) < 1e-6 * numpy.abs(wanted).max()


def test_summed_product_is_the_sum() -> None:
    w_v, w_o = random_weights(4, 6, 3)
    numpy.testing.assert_allclose(summed_product(w_v, w_o), sum(head_products(w_v, w_o)), atol=1e-12)


@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("sharpened", [False, True])
def test_extreme_modulus_against_all_eigenvalues(d: int, sharpened: bool) -> None:
    for seed in range(2):
        h = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / d**0.5
        h = -0.1 * h @ h.mT if sharpened else h  # eigenvalues crowd below 0, and iterations do not settle
        for shift in (0.0, 1.0):
            values = numpy.linalg.eigvals(h.numpy())
            modulus, value = extreme_modulus(h, shift)
            assert modulus == pytest.approx(numpy.abs(values + shift).max(), abs=1e-8)
            assert numpy.abs(values - value).min() < 1e-6


def test_eigenvalues_of_a_rotation() -> None:
    angle = torch.tensor(0.3, dtype=torch.float64)
    rotation = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    assert spectrum_distance(eigenvalues(rotation).numpy(), numpy.exp([0.3j, -0.3j])) < 1e-12


@pytest.mark.parametrize(("d", "d_h"), [(12, 3), (12, 6), (8, 6), (4, 7)])
def test_head_shape_against_whole_products(d: int, d_h: int) -> None:
    w_v, w_o = random_weights(5, d, d_h)
    found = head_shape(w_v, w_o)
    for head, product in enumerate(head_products(w_v, w_o)):
        h = torch.from_numpy(product)
        skew = numpy.linalg.norm(product - product.T) / (2 * numpy.linalg.norm(product))
        ends = numpy.linalg.eigvalsh((product + product.T) / 2)
        values, vectors = numpy.linalg.eig(product)
        kept = vectors[:, numpy.argsort(-numpy.abs(values))[: min(d, d_h)]]
        assert found.asymmetry[head] == pytest.approx(skew, abs=1e-9)
        assert asymmetry(h) == pytest.approx(skew, abs=1e-12)
        assert (found.range_low[head], found.range_high[head]) == pytest.approx((ends[0], ends[-1]), abs=1e-9)
        assert numerical_range(h) == pytest.approx((ends[0], ends[-1]), abs=1e-12)
        assert found.condition[head] == pytest.approx(numpy.linalg.cond(kept), rel=1e-6)
        if d_h >= d:
            assert eigenvector_condition(h) == pytest.approx(numpy.linalg.cond(vectors), rel=1e-6)


def test_shape_of_special_heads() -> None:
    w_v, _ = random_weights(1, 9, 2)
    gram = head_shape(w_v, -w_v.mT)
    assert gram.asymmetry.item() == pytest.approx(0.0, abs=1e-9)
    assert gram.condition.item() == pytest.approx(1.0, abs=1e-6)
    assert gram.range_high.item() == pytest.approx(0.0, abs=1e-9)
    nothing = head_shape(torch.zeros(1, 4, 2), torch.zeros(1, 2, 4))
    assert nothing.asymmetry.item() == 0.0
    assert nothing.range_low.item() == nothing.range_high.item() == 0.0
    assert asymmetry(torch.zeros(3, 3)) == 0.0
    # w_o w_v is a Jordan block: one eigenvector for two eigenvalues.
    jordan = head_shape(torch.eye(3, 2)[None], torch.tensor([[[0.5, 1.0, 0.0], [0.0, 0.5, 0.0]]]))
    assert jordan.condition.item() == torch.inf


def layer_norm(x: torch.Tensor, weight: torch.Tensor, centred: bool, scale: float) -> torch.Tensor:
    """A norm whose σ is held at one number."""
    return (x - x.mean(dim=-1, keepdim=True) if centred else x) / scale * weight


@pytest.mark.parametrize("centred", [True, False])
def test_folded_norms_do_what_norms_do(centred: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((7, 5), (5,)))
    h = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    pre = layer_norm(x, weight, centred, 1.7) @ h
    torch.testing.assert_close(x @ fold_pre_norm(h, weight, centred, 1.7), pre)
    post = layer_norm(x + x @ h, weight, centred, 1.7)
    torch.testing.assert_close(x @ fold_post_norm(h, weight, centred, 1.7), post)
    torch.testing.assert_close(x @ norm_factor(h, weight, centred, 1.7), layer_norm(x, weight, centred, 1.7))


def test_folded_layer_norm_at_tokens_of_equal_scale() -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = 2.5 * torch.nn.functional.layer_norm(x, (8,), eps=0.0)
    weight = torch.linspace(-1.0, 2.0, 8, dtype=torch.float64)
    normed = torch.nn.functional.layer_norm(x, (8,), weight, eps=0.0)
    h = torch.randn(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(x @ fold_pre_norm(h, weight, True, 2.5), normed @ h)


def test_folding_into_value_weights_is_folding_into_the_product() -> None:
    w_v, w_o = random_weights(3, 6, 2)
    weight = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    folded = summed_product(fold_pre_norm(w_v, weight, True, 0.7), w_o)
    torch.testing.assert_close(folded, fold_pre_norm(summed_product(w_v, w_o), weight, True, 0.7))


def test_negated_norm_weight_negates_the_spectrum() -> None:
    w_v, w_o = random_weights(1, 6, 3)
    weight = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    plus, minus = (head_eigenvalues(fold_pre_norm(w_v, sign * weight, True, 1.0), w_o)[0] for sign in (1.0, -1.0))
    assert spectrum_distance(-plus.numpy(), minus.numpy()) < 1e-12


@pytest.mark.parametrize("smallest", [-0.5, 0.0, 0.3])
def test_flip_scale_against_a_search(smallest: float) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(10):
        values = torch.complex(
            -torch.rand(6, generator=generator).double() - 0.01, torch.randn(6, generator=generator).double()
        )
        flip = flip_scale(values, smallest)
        assert flip is not None
        for scale, smooths in ((0.99 * flip, True), (1.01 * flip, False)):
            lam = values / scale
            # For some λ the mode of equal tokens beats the mode at the other end of attention's spectrum.
            assert bool(((1 + lam).abs() >= (1 + smallest * lam).abs()).any()) is smooths


def test_flip_scale_where_nothing_flips() -> None:
    assert flip_scale(torch.tensor([-1.0, 0.5])) is None
    assert flip_scale(torch.tensor([2.0j, -2.0j])) is None
    assert flip_scale(torch.zeros(3)) is None
    assert flip_scale(torch.tensor([-3.0, 0.0])) == pytest.approx(1.5)
    assert flip_scale(torch.tensor([-3.0]), -1.0) == 0.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: head_eigenvalues(torch.zeros(2, 4, 3), torch.zeros(2, 4, 3)), r"`w_o` of shape \(2, 3, 4\)"),
        (lambda: head_eigenvalues(torch.zeros(4, 3), torch.zeros(3, 4)), "three dimensions"),
        (lambda: head_eigenvalues(torch.full((1, 2, 1), torch.nan), torch.zeros(1, 1, 2)), "finite `w_v`"),
        (lambda: head_eigenvalues(torch.zeros(1, 2, 1, dtype=torch.long), torch.zeros(1, 1, 2)), "floating"),
        (lambda: eigenvalues(torch.zeros(2, 3)), "square"),
        (lambda: numerical_range(torch.full((2, 2), torch.inf)), "finite"),
        (lambda: fold_pre_norm(torch.eye(2), None, True, 0.0), "above 0"),
        (lambda: fold_pre_norm(torch.eye(2), torch.ones(3), True, 1.0), r"shape \(2,\)"),
        (lambda: flip_scale(torch.tensor([-1.0]), 2.0), r"\[-1, 1\]"),
        (lambda: flip_scale(torch.tensor([torch.nan])), "finite eigenvalues"),
    ],
)
def test_bad_input_is_told(call, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words):
        call()
