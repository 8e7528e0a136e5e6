"""The two parts of a layer's spectrum against a dense Kronecker matrix built in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unsmooth.errors import UnsmoothError
from unsmooth.theory import modes, random_attention
from unsmooth.theory.maps import drawn, uniform_attention
from unsmooth.theory.modes import eigenvalue_distance


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_union_of_the_parts_is_the_whole(heads: int) -> None:
    maps = torch.stack([random_attention(5, seed=head, logit_std=2.0) for head in range(heads)])
    weights = drawn(heads, 3, 3, seed=9)
    whole = np.eye(15)
    for attention, h in zip(maps.numpy(), weights.numpy(), strict=True):
        whole = whole + np.kron(h.T, attention)  # on column-major vectors
    found = modes(maps, weights)
    assert eigenvalue_distance(np.concatenate([found.mean, found.rest]), np.linalg.eigvals(whole)) < 1e-10
    assert len(found.mean) == 3
    assert len(found.rest) == 12


def test_one_head_is_the_product_set() -> None:
    attention, h = random_attention(6, seed=1), drawn(4, 4, seed=2)
    values = np.linalg.eigvals(attention.numpy())
    rest = np.delete(values, np.abs(values - 1.0).argmin())
    found = modes(attention, h)
    feature = np.linalg.eigvals(h.numpy())
    assert eigenvalue_distance(found.mean, 1.0 + feature) < 1e-12
    assert eigenvalue_distance(found.rest, (1.0 + np.outer(rest, feature)).ravel()) < 1e-10


def test_dominance_is_strict() -> None:
    assert modes(uniform_attention(3), 0.5 * torch.eye(2)).mean_dominates
    assert not modes(uniform_attention(3), -0.5 * torch.eye(2)).mean_dominates
    assert not modes(uniform_attention(3), torch.zeros(2, 2)).mean_dominates


def test_too_large_is_refused() -> None:
    with pytest.raises(UnsmoothError, match="at most 4096 but got 5100"):
        modes(uniform_attention(52), torch.eye(100))
