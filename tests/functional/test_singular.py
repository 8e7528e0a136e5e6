"""Singular values by way of squares, against numpy's decomposition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from unsmooth.functional import Tokens, effective_rank


def _gaussian(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _falling(smallest: float) -> Tensor:
    """Singular values from 1 down to `smallest`, in float64."""
    left, _ = torch.linalg.qr(_gaussian(20, 20).double())
    right, _ = torch.linalg.qr(_gaussian(30, 30).double())
    values = torch.logspace(0, float(np.log10(smallest)), 20, dtype=torch.float64)
    return (left @ torch.diag(values) @ right[:20]).unsqueeze(0)


CASES = {
    "wide": _gaussian(3, 8, 20),
    "tall": _gaussian(3, 20, 8),
    "square": _gaussian(2, 16, 16),
    "equal tokens": _gaussian(2, 1, 20).expand(2, 12, 20),
    "a zero token": torch.cat([_gaussian(1, 6, 20), torch.zeros(1, 1, 20)], dim=1),
    "one of many is of low rank": torch.cat([_gaussian(2, 6, 9), torch.ones(1, 6, 9)]),
    "zeros": torch.zeros(2, 5, 7),
    "tiny": 1e-30 * _gaussian(2, 6, 9),
    "squares that vanish": 1e-200 * _gaussian(1, 6, 9).double(),
    "squares that overflow": 1e200 * _gaussian(1, 6, 9).double(),
    "down to 1e-4": _falling(1e-4),
    "down to 1e-7": _falling(1e-7),
    "down to 1e-14": _falling(1e-14),
}


@pytest.mark.parametrize("name", CASES)
def test_singular_values_are_those_of_a_decomposition(name: str) -> None:
    x = CASES[name]
    expected = np.linalg.svd(x.double().numpy(), compute_uv=False)
    found = Tokens(x).singular_values_BK.numpy()
    assert found.dtype == np.float64
    assert np.abs(found - expected).max() <= 1e-10 * max(expected.max(), 1e-300)


def test_padding_adds_none() -> None:
    x = _gaussian(3, 10, 16)
    mask = torch.arange(10) < torch.tensor([10, 6, 1])[:, None]
    found = Tokens(torch.where(mask.unsqueeze(-1), x, torch.nan), mask).singular_values_BK
    for row, count in zip(range(3), (10, 6, 1), strict=True):
        expected = np.linalg.svd(x[row, :count].double().numpy(), compute_uv=False)
        assert np.allclose(found[row, :count].numpy(), expected, rtol=1e-12)
        assert not found[row, count:].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_sequence_only(bad: float) -> None:
    x = _gaussian(2, 6, 9)
    x[0, 3, 4] = bad
    found = Tokens(x).singular_values_BK
    assert found[0].isnan().all()
    assert np.allclose(found[1].numpy(), np.linalg.svd(x[1].double().numpy(), compute_uv=False))


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-5, 1e-6, 1e-9])
def test_small_singular_values_move_the_effective_rank_as_they_should(smallest: float) -> None:
    x = _falling(smallest)
    share = np.linalg.svd(x[0].numpy(), compute_uv=False)
    share = share / share.sum()
    assert float(effective_rank(x)) == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-8)
