"""The draws are what they are named for."""

from __future__ import annotations

from math import inf, log

import numpy as np
import pytest
import torch

from unsmooth.evidence.claims._random_layers import ATTENTION, WEIGHTS, condition, generator, layers_to_settle


@pytest.mark.parametrize("kind", ATTENTION)
def test_rows_sum_to_one_and_one_is_a_simple_eigenvalue(kind: str) -> None:
    for seed in range(20):
        attention = ATTENTION[kind](generator(seed)).numpy()
        assert np.allclose(attention.sum(axis=1), 1.0)
        moduli = np.sort(np.abs(np.linalg.eigvals(attention)))
        assert abs(moduli[-1] - 1.0) < 1e-12
        assert moduli[-2] < 1.0 - 1e-6


def test_a_key_gives_one_layer_and_another_key_another() -> None:
    first, again, other = (ATTENTION["softmax"](generator(*key)) for key in ((3, 1), (3, 1), (3, 2)))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)


def test_doubly_stochastic_maps_are_symmetric() -> None:
    attention = ATTENTION["doubly stochastic"](generator(0))
    assert torch.allclose(attention, attention.T)
    assert torch.allclose(attention.sum(dim=0), torch.ones(len(attention), dtype=torch.float64))


def test_spectra_lie_where_their_names_say() -> None:
    for seed in range(20):
        values = {kind: np.linalg.eigvals(draw(generator(seed)).numpy()) for kind, draw in WEIGHTS.items()}
        assert values["positive"].real.min() > 0.01
        assert -1.0 - 1e-9 < values["negative"].real.min() <= values["negative"].real.max() < -0.19
        assert np.abs(values["complex pairs"].imag).max() > 0.19
        assert np.abs(values["exact zeros"]).min() < 1e-12
        assert np.abs(values["symmetric"].imag).max() < 1e-9


def test_condition_of_eigenvectors() -> None:
    skewed = torch.tensor([[1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)  # eigenvectors (1, 0) and (1, 1)/√2
    assert condition(torch.eye(3)) == 1.0
    assert condition(skewed) == pytest.approx(1.0 + 2.0**0.5)


def test_layers_to_settle() -> None:
    assert layers_to_settle(log(1.2), 1.0) == 127  # 1.2^127 is the first power above 1e10
    assert layers_to_settle(log(1.2), 1e10) == 253
    assert layers_to_settle(inf, 1.0) == 20
    assert layers_to_settle(0.0, 1.0) is None
