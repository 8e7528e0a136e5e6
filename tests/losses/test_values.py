"""Every loss against loops over pairs, with and without a mask, whose padding is NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.losses import by_hand
from unsmooth import losses


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, 5, dtype=torch.float64, generator=generator) + 0.5
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1]]).bool()
    return x.to(dtype).masked_fill(~mask.unsqueeze(-1), math.nan), mask


def plain() -> Tensor:
    return torch.nan_to_num(batch()[0], nan=0.25)


BOTH = pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])


def given(masked: bool) -> tuple[Tensor, Tensor | None]:
    return batch() if masked else (plain(), None)


@BOTH
@pytest.mark.parametrize("options", [{}, {"absolute": True}, {"over_square": True}], ids=str)
def test_cosine(masked: bool, options: dict[str, bool]) -> None:
    x, mask = given(masked)
    wanted = by_hand.averaged(by_hand.sequences(x, mask), lambda rows: by_hand.cosine(rows, **options))
    assert losses.cosine(x, mask, **options).item() == pytest.approx(wanted, rel=1e-12)


@BOTH
@pytest.mark.parametrize("temperature", [0.1, 2.0])
def test_laplacian(masked: bool, temperature: float) -> None:
    x, mask = given(masked)
    wanted = by_hand.averaged(by_hand.sequences(x, mask), lambda rows: by_hand.laplacian(rows, temperature))
    assert losses.laplacian(x, mask, temperature=temperature).item() == pytest.approx(wanted, rel=1e-12)


def test_laplacian_of_tokens_far_apart_at_a_low_temperature() -> None:
    """Weights of exp(-1/τ) are below the smallest number there is; they are equal all the same."""
    x = torch.eye(4, dtype=torch.float64).unsqueeze(0).requires_grad_()
    found = losses.laplacian(x, temperature=1e-3)
    assert found.item() == pytest.approx(-1.0, rel=1e-12)
    found.backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_layer_contrast_of_a_matrix_is_that_of_one_sequence() -> None:
    x = plain()
    found = losses.layer_contrast(x[0], first_BND=x[1])
    assert found.item() == losses.layer_contrast(x[:1], first_BND=x[1:2]).item()


@BOTH
def test_layer_contrast(masked: bool) -> None:
    x, mask = given(masked)
    first = x.flip(-1)
    pairs = zip(by_hand.sequences(x, mask), by_hand.sequences(first, mask), strict=True)
    values = [by_hand.layer_contrast(rows, begun, 0.7) for rows, begun in pairs if len(rows) > 1]
    found = losses.layer_contrast(x, mask, first_BND=first, temperature=0.7)
    assert found.item() == pytest.approx(sum(values) / len(values), rel=1e-12)


def test_layer_contrast_of_a_neighbourhood() -> None:
    x = torch.randn(2, 16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = zip(by_hand.sequences(x, None), by_hand.sequences(x.flip(-1), None), strict=True)
    wanted = sum(by_hand.layer_contrast(rows, first, 1.0, 3) for rows, first in pairs) / 2
    assert losses.layer_contrast(x, first_BND=x.flip(-1), neighbourhood=3).item() == pytest.approx(wanted, rel=1e-12)


def test_no_gradient_goes_to_the_first_layer() -> None:
    x, first = plain().requires_grad_(), plain().flip(-1).requires_grad_()
    losses.layer_contrast(x, first_BND=first).backward()
    assert first.grad is None
    assert x.grad is not None


@BOTH
@pytest.mark.parametrize("scale", [None, 3.0])
@pytest.mark.parametrize("decay", ["exponential", "polynomial"])
def test_spectrum(masked: bool, decay: str, scale: float | None) -> None:
    x, mask = given(masked)
    targets = {"exponential": lambda k: math.exp(-0.3 * (k - 1) ** 1.5), "polynomial": lambda k: k**-0.3}
    rows = by_hand.sequences(x, mask)
    wanted = by_hand.averaged(rows, lambda one: by_hand.spectrum(one, targets[decay], scale), at_least=1)
    found = losses.spectrum(x, mask, decay=decay, rate=0.3, power=1.5, scale=scale)
    assert found.item() == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_simcse_and_duorec(pooling: str) -> None:
    x, mask = batch()
    mask[2] = False  # a sequence without tokens is neither one view nor the other's negative
    other = x.flip(-1) * 0.5
    pick = {"first": lambda rows: rows[0], "last": lambda rows: rows[-1], "mean": lambda rows: sum(rows) / len(rows)}
    one, two = ([pick[pooling](rows) for rows in by_hand.sequences(y, mask) if rows] for y in (x, other))
    found = losses.simcse(x, mask, other_BND=other, pooling=pooling, temperature=0.2)
    assert found.item() == pytest.approx(by_hand.simcse(one, two, 0.2), rel=1e-12)
    for alike in ("dot", "cosine"):
        found = losses.duorec(x, mask, other_BND=other, pooling=pooling, similarity=alike, temperature=2.0)
        assert found.item() == pytest.approx(by_hand.duorec(one, two, 2.0, alike == "cosine"), rel=1e-12)


def test_views_of_different_lengths_have_masks_of_their_own() -> None:
    x, mask = batch()
    other, other_mask = 0.5 * x[:, :5].flip(-1), mask[:, :5]
    one, two = ([rows[-1] for rows in by_hand.sequences(*view)] for view in ((x, mask), (other, other_mask)))
    masks = {"mask_BN": mask, "other_mask_BN": other_mask}
    found = losses.simcse(x, other_BND=other, pooling="last", temperature=0.2, **masks)
    assert found.item() == pytest.approx(by_hand.simcse(one, two, 0.2), rel=1e-12)
    found = losses.duorec(x, other_BND=other, **masks)
    assert found.item() == pytest.approx(by_hand.duorec(one, two, 1.0, cosines=False), rel=1e-12)


@BOTH
@pytest.mark.parametrize("with_self", [True, False])
@pytest.mark.parametrize("form", ["l2", "cosine", "hinge", "covariance"])
def test_dispersion(masked: bool, form: str, with_self: bool) -> None:
    x, mask = given(masked)
    settings = {"form": form, "temperature": 0.5, "margin": 2.0, "with_self": with_self}
    rows = by_hand.sequences(x, mask)
    wanted = by_hand.averaged(rows, lambda one: by_hand.dispersion(one, **settings))
    assert losses.dispersion(x, mask, **settings).item() == pytest.approx(wanted, rel=1e-11)
    means = [sum(one) / len(one) for one in rows]
    wanted = by_hand.dispersion(means, **settings)
    assert losses.dispersion(x, mask, of="means", **settings).item() == pytest.approx(wanted, rel=1e-11)


def test_dispersion_of_whole_sequences() -> None:
    x = plain()
    rows = [one.flatten().numpy() for one in x]
    wanted = by_hand.dispersion(rows, "l2", 1.0, 1.0, True)
    assert losses.dispersion(x, of="sequences").item() == pytest.approx(wanted, rel=1e-12)


def test_a_matrix_is_one_sequence() -> None:
    x = plain()[0]
    for name in ("cosine", "laplacian", "spectrum", "dispersion"):
        function = losses.LOSSES[name].function
        assert function(x).item() == function(x.unsqueeze(0)).item()


def test_two_opposite_cones_please_the_mean_cosine_and_not_the_laplacian() -> None:
    generator = torch.Generator().manual_seed(0)
    centre = torch.zeros(16, dtype=torch.float64).index_fill(0, torch.tensor(0), 1.0)
    near = 0.01 * torch.randn(40, 16, dtype=torch.float64, generator=generator)
    cones = near + centre * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(20)[:, None]
    spread = torch.randn(40, 16, dtype=torch.float64, generator=generator)
    assert losses.cosine(cones) < losses.cosine(spread)
    assert losses.laplacian(cones) > losses.laplacian(spread) + 0.3
