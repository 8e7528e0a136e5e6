"""Metrics of tokens on the grid of an image, against the Fourier sum written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.functional.cases import BATCH, gaussian
from tests.functional.references import ENTRIES, log_amplitude_curve
from unsmooth import functional as uf
from unsmooth.errors import UnsmoothError
from unsmooth.functional._grid import grid_of_image

GRIDS = [(1, 1), (2, 2), (4, 4), (5, 5), (3, 6), (7, 4)]
NASTY = {
    "random": lambda x: x,
    "offset": lambda x: x + 5.0,
    "small": lambda x: 1e-6 * x,
    "collapsed": lambda x: (0.1 + x[:, :1]).expand_as(x),
    "zero": torch.zeros_like,
    "zero_tokens": lambda x: x * (torch.arange(x.shape[1]) % 3 != 0).unsqueeze(-1),
}


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("change", NASTY)
def test_curve_agrees_with_the_fourier_sum(grid: tuple[int, int], diagonal: bool, change: str) -> None:
    x = NASTY[change](gaussian(BATCH, math.prod(grid), 3))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        given = x.to(dtype)
        got = uf.log_amplitude_curve(given, grid=grid, diagonal=diagonal)
        want = [log_amplitude_curve(one.double().numpy(), grid, diagonal) for one in given]
        np.testing.assert_allclose(got.double().numpy(), want, atol=2e-5)
        assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        number = uf.relative_log_amplitude(given, grid=grid, diagonal=diagonal)
        assert torch.equal(number, got[:, -1])


def test_it_is_what_the_notebook_draws() -> None:
    """The steps of fourier_analysis.ipynb in numpy: mean of logarithms, shift, half-diagonal, minus the first."""
    x = gaussian(BATCH, 36, 5).double()
    pictures = x.numpy().reshape(BATCH, 6, 6, 5)
    level = np.log(np.abs(np.fft.fft2(pictures, axes=(1, 2))) + 1e-6)
    shifted = np.roll(level, (3, 3), axis=(1, 2)).mean(axis=(0, 3))
    drawn = np.diag(shifted)[3:]
    np.testing.assert_allclose(uf.log_amplitude_curve(x).mean(dim=0).numpy(), drawn - drawn[0], atol=1e-12)


@pytest.mark.parametrize("place", ["front", "back", "scattered"])
def test_class_tokens_are_left_out_wherever_they_are(place: str) -> None:
    x = gaussian(BATCH, 16, 3)
    real = {"front": range(2, 18), "back": range(16), "scattered": [*range(5), *range(6, 12), *range(13, 18)]}[place]
    mask = torch.zeros(BATCH, 18, dtype=torch.bool)
    mask[:, list(real)] = True
    padded = torch.full((BATCH, 18, 3), torch.nan)
    padded[mask] = x.flatten(0, 1)
    torch.testing.assert_close(uf.relative_log_amplitude(padded, mask), uf.relative_log_amplitude(x))


def test_a_sequence_that_does_not_fill_the_grid_is_nan() -> None:
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[1, 3] = False
    assert uf.relative_log_amplitude(gaussian(2, 16, 3), mask).isnan().tolist() == [False, True]


def test_nan_and_inf_show_in_their_own_sequence() -> None:
    x = gaussian(3, 16, 3)
    x[0, 2, 0], x[2, 5, 1] = torch.nan, torch.inf
    assert uf.relative_log_amplitude(x).isfinite().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (gaussian(1, 12, 3), {}, r"Expected tokens on a square grid but got 12 of them. Try grid=\(height, width\)"),
        (gaussian(1, 12, 3), {"grid": (3, 5)}, r"Expected `grid` as \(height, width\) of 12 tokens but got \(3, 5\)"),
        (gaussian(1, 12, 3), {"grid": (-3, -4)}, "Expected `grid` as"),
    ],
)
def test_what_is_no_grid_is_refused(x: Tensor, options: dict[str, tuple[int, int]], message: str) -> None:
    with pytest.raises(UnsmoothError, match=message):
        uf.relative_log_amplitude(x, **options)


def test_degenerate_values_are_the_documented_ones() -> None:
    entry = ENTRIES["relative_log_amplitude"]
    assert uf.relative_log_amplitude(gaussian(2, 1, 3)).tolist() == [entry.single] * 2
    assert uf.relative_log_amplitude(torch.zeros(2, 16, 3)).tolist() == [entry.zero] * 2


def test_gradients_are_right_and_finite() -> None:
    x = gaussian(1, 16, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(uf.relative_log_amplitude, (x,))
    same = torch.ones(1, 16, 2, requires_grad=True)
    uf.relative_log_amplitude(same).sum().backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()


@pytest.mark.parametrize(
    ("tokens", "image", "grid"),
    [
        (196, (224, 224), (14, 14)),
        (98, (112, 224), (7, 14)),
        (98, (224, 112), (14, 7)),
        (256, (32, 32), (16, 16)),
        (35, (65, 90), (5, 7)),
        (197, (224, 224), None),
        (7, (224, 224), None),
    ],
)
def test_grid_from_the_shape_of_the_image(tokens: int, image: tuple[int, int], grid: tuple[int, int] | None) -> None:
    assert grid_of_image(tokens, image) == grid
