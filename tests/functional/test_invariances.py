"""Each invariance that a metric declares, by hypothesis; and that it lacks those which it does not declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.functional.cases import PER_SEQUENCE, attention_maps, gaussian, metrics_reading
from unsmooth.functional import METRICS, Metric
from unsmooth.functional._metric import Invariance

Change = Callable[[Tensor, int], Tensor]
INVARIANCES: tuple[str, ...] = get_args(Invariance)


def _normal(*shape: int, seed: int) -> Tensor:
    return gaussian(*shape, seed=seed).double()


def _permutation(x: Tensor, seed: int) -> Tensor:
    order = torch.randperm(x.shape[-2], generator=torch.Generator().manual_seed(seed))
    return x[..., order, :][..., order] if x.ndim == 4 else x[:, order]


def _rotation(x: Tensor, seed: int) -> Tensor:
    return x @ torch.linalg.qr(_normal(x.shape[-1], x.shape[-1], seed=seed))[0]


def _token_scale(x: Tensor, seed: int, spread: float = 1.0) -> Tensor:
    return x * (spread * _normal(1, x.shape[1], 1, seed=seed)).exp()


CHANGES: dict[str, Change] = {
    "permutation": _permutation,
    "rotation": _rotation,
    "scale": lambda x, seed: x * _normal(1, seed=seed).exp(),
    "token_scale": _token_scale,
    "translation": lambda x, seed: x + 3.0 * _normal(x.shape[-1], seed=seed),
    "reflection": lambda x, seed: -x,
}

# Changes of the same kind that are rarer: a rank falls only when a token becomes (nearly) zero.
RARE_CHANGES: dict[str, Change] = {
    "token_scale": lambda x, seed: _token_scale(x, seed, spread=30.0),
    "translation": lambda x, seed: x - x[:, :1],
}


def _inputs(metric: Metric, n: int, d: int, seed: int) -> tuple[Tensor, ...]:
    if metric.reads == "attention":
        return (attention_maps(_normal(1, 2, n, n, seed=seed), causal=seed % 2 == 0),)
    tokens = tuple(_normal(1, n, d, seed=seed + k) + 0.5 for k in range(2))
    return tokens if metric.reads == "pair" else tokens[:1]


def _after(change: Change, name: str, inputs: tuple[Tensor, ...], seed: int) -> tuple[Tensor, ...]:
    """Both of a pair have the same tokens in the same order; all else they change each on their own."""
    return tuple(change(x, seed if name == "permutation" else seed + k) for k, x in enumerate(inputs))


def test_every_invariance_has_a_change() -> None:
    assert set(CHANGES) == set(INVARIANCES)


DECLARED = [(name, kind) for name in PER_SEQUENCE for kind in sorted(METRICS[name].invariances)]
NOT_DECLARED = [
    (name, kind)
    for name in metrics_reading("tokens", "pair")
    for kind in INVARIANCES
    if kind not in METRICS[name].invariances
] + [(name, "permutation") for name in metrics_reading("attention")]


@pytest.mark.parametrize(("name", "kind"), DECLARED)
@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 12), d=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_declared_invariances_hold(name: str, kind: str, n: int, d: int, seed: int) -> None:
    function, inputs = METRICS[name].function, _inputs(METRICS[name], n, d, seed)
    changed = _after(CHANGES[kind], kind, inputs, seed + 2)
    torch.testing.assert_close(function(*changed), function(*inputs), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("name", "kind"), NOT_DECLARED)
def test_invariances_that_are_not_declared_do_not_hold(name: str, kind: str) -> None:
    function, inputs = METRICS[name].function, _inputs(METRICS[name], 5, 8, seed=0)
    before = function(*inputs)
    changes = [table[kind] for table in (CHANGES, RARE_CHANGES) if kind in table]
    after = [function(*_after(change, kind, inputs, 3)) for change in changes]
    assert any((value - before).abs() > 1e-3 * before.abs().clamp_min(1e-3) for value in after)
