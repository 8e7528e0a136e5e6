"""The draw of pairs: all of them where they are few, otherwise no pair twice and none of padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.functional.cases import gaussian
from unsmooth.functional import Tokens, _sampled_pairs, cosine_histogram, cosine_quantile
from unsmooth.functional._sampled_pairs import _tokens_of_pair, sampled_cosines


@pytest.mark.parametrize("n", [2, 3, 17, 4001])
def test_pairs_are_counted_row_by_row(n: int) -> None:
    rows, columns = np.triu_indices(n, k=1)
    pair = torch.arange(len(rows), dtype=torch.float64).unsqueeze(0)
    first, second = _tokens_of_pair(pair, torch.tensor([[float(n)]], dtype=torch.float64))
    assert np.array_equal(first[0].numpy(), rows)
    assert np.array_equal(second[0].numpy(), columns)


@pytest.mark.parametrize("n", [300_000, 3_000_001])
def test_the_last_pairs_of_very_long_input_are_right(n: int) -> None:
    total = n * (n - 1) // 2
    pair = torch.tensor([[0, n - 2, n - 1, total - 1, total - 2, total - 3]], dtype=torch.float64)
    first, second = _tokens_of_pair(pair, torch.tensor([[float(n)]], dtype=torch.float64))
    assert first[0].tolist() == [0, 0, 1, n - 2, n - 3, n - 3]
    assert second[0].tolist() == [1, n - 1, 2, n - 1, n - 1, n - 2]


def test_no_pair_comes_twice_and_real_tokens_alone_are_drawn() -> None:
    """Tokens at random angles: no two pairs have the same cosine."""
    angles = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.full((2, 60, 2), torch.nan, dtype=torch.float64)
    mask = torch.zeros(2, 60, dtype=torch.bool)
    mask[0, :50] = mask[1, 10:] = True  # padding right and left
    x[mask] = torch.stack([angles.cos(), angles.sin()], dim=-1).repeat(2, 1)
    cosines, drawn = sampled_cosines(Tokens(x, mask), pairs=300, seed=5)
    assert drawn.tolist() == [300, 300]
    assert torch.equal(cosines[0], cosines[1])
    assert len(cosines[0].unique()) == 300
    every = (angles[:, None] - angles[None, :]).cos()[np.triu_indices(50, 1)]
    assert (cosines[0, :, None] - every).abs().min(dim=1).values.max() < 1e-12


def test_a_draw_is_near_the_exact_quantile_and_a_seed_decides_it() -> None:
    x = gaussian(1, 400, 16) + 0.3 * gaussian(16)
    unit = torch.nn.functional.normalize(x[0].double(), dim=-1)
    every = (unit @ unit.T).numpy()[np.triu_indices(400, 1)]
    for q in (0.1, 0.5, 0.9):
        # Standard error of a quantile: √(q(1 − q)/pairs)/density, with a density above 0.5 here.
        assert abs(cosine_quantile(x, q=q).item() - np.quantile(every, q)) < 4 * 0.5 / np.sqrt(2048) / 0.5
    assert cosine_quantile(x, seed=1).item() != cosine_quantile(x, seed=2).item()
    assert torch.equal(cosine_quantile(x, seed=1), cosine_quantile(x, seed=1))


@pytest.mark.parametrize("absolute", [False, True])
def test_histogram_against_numpy(absolute: bool) -> None:
    x = gaussian(3, 20, 5).double()
    mask = torch.arange(20) < torch.tensor([[20], [7], [1]])
    got = cosine_histogram(torch.where(mask.unsqueeze(-1), x, torch.nan), mask, absolute=absolute)
    torch.testing.assert_close(got.sum(dim=1), torch.ones(3, dtype=torch.float64))
    for row, length in ((0, 20), (1, 7)):
        real = x[row, :length].numpy()
        real = real / np.linalg.norm(real, axis=1, keepdims=True)
        cosines = (real @ real.T)[np.triu_indices(length, 1)]
        cosines = np.abs(cosines) if absolute else cosines
        want = np.histogram(cosines, bins=40, range=(-1, 1))[0] / len(cosines)
        np.testing.assert_allclose(got[row].numpy(), want, atol=1e-12)
    assert got[2, -1] == 1.0


def test_a_broken_token_that_the_draw_misses_still_shows() -> None:
    x = gaussian(2, 200, 4)
    x[0, 7] = torch.nan
    assert cosine_quantile(x, pairs=1).isnan().tolist() == [True, False]
    assert cosine_histogram(x, pairs=1).isnan().any(dim=1).tolist() == [True, False]


def test_two_ways_to_the_same_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products of a sequence, and the vectors of each pair gathered."""
    x, mask = gaussian(3, 40, 6), torch.arange(40) < torch.tensor([[40], [9], [1]])
    by_products, drawn = sampled_cosines(Tokens(x, mask), pairs=200, seed=1)
    monkeypatch.setattr(_sampled_pairs, "_PRODUCTS", 0)
    by_gathering, _ = sampled_cosines(Tokens(x, mask), pairs=200, seed=1)
    for row, count in enumerate(drawn.tolist()):
        torch.testing.assert_close(by_products[row, :count], by_gathering[row, :count], rtol=1e-5, atol=1e-6)
