"""Gradients: right where the metric is smooth, finite everywhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.functional.cases import (
    BATCH,
    CHANGES,
    PER_SEQUENCE,
    SETTINGS,
    TOKENS,
    Case,
    attention_maps,
    gaussian,
    inputs_for,
    masked,
    masks,
    setting_id,
)
from unsmooth.functional import METRICS, attention_entropy

DIFFERENTIABLE = [(name, options) for name, options in SETTINGS if METRICS[name].differentiable]
with_every_differentiable = pytest.mark.parametrize(("name", "options"), DIFFERENTIABLE, ids=setting_id)


def _with_gradient(case: Case) -> Case:
    return Case(tuple(tensor.clone().requires_grad_() for tensor in case.inputs), case.mask)


def _gradients(case: Case, name: str, options: dict[str, Any]) -> tuple[Tensor, ...]:
    case = _with_gradient(case)
    case.measure(METRICS[name], **options).sum().backward()
    gradients = tuple(tensor.grad for tensor in case.inputs)
    assert all(gradient is not None for gradient in gradients)
    return gradients  # type: ignore[return-value]


@with_every_differentiable
@pytest.mark.parametrize("shape", [(6, 4), (3, 5)], ids=["tall", "wide"])
def test_gradcheck(name: str, options: dict[str, Any], shape: tuple[int, int]) -> None:
    n, d = shape
    # Short tokens: attention weights near 0, where the entropy is steep, are beyond finite differences.
    case = inputs_for(METRICS[name], lambda x: 0.5 * x + 0.2, n=n, d=d)
    mask = torch.arange(n).expand(BATCH, n) != 1
    doubles = Case(tuple(tensor.double() for tensor in case.inputs))
    case = _with_gradient(masked(doubles, mask, garbage=0.25))
    function = METRICS[name].function
    assert torch.autograd.gradcheck(lambda *inputs: function(*inputs, mask, **options), case.inputs)


@with_every_differentiable
@pytest.mark.parametrize("change", ["collapsed", "near_collapsed", "zero_tokens", "two_clusters"])
def test_gradients_are_finite_on_degenerate_tokens(name: str, options: dict[str, Any], change: str) -> None:
    gradients = _gradients(inputs_for(METRICS[name], CHANGES[change]), name, options)
    assert all(gradient.isfinite().all() for gradient in gradients)


@with_every_differentiable
def test_gradients_are_finite_on_single_and_zero_tokens(name: str, options: dict[str, Any]) -> None:
    single = inputs_for(METRICS[name], CHANGES["random"], n=1)
    zero = Case(tuple(torch.zeros_like(tensor) for tensor in inputs_for(METRICS[name], CHANGES["random"]).inputs))
    for case in (single, zero):
        assert all(gradient.isfinite().all() for gradient in _gradients(case, name, options))


@with_every_differentiable
@pytest.mark.parametrize("kind", masks())
def test_padding_gets_no_gradient(name: str, options: dict[str, Any], kind: str) -> None:
    case = masked(inputs_for(METRICS[name], CHANGES["random"]), masks()[kind])
    for gradient, tensor in zip(_gradients(case, name, options), case.inputs, strict=True):
        assert gradient.isfinite().all()
        assert (gradient[tensor.isnan()] == 0).all()


@pytest.mark.parametrize("name", [name for name in PER_SEQUENCE if METRICS[name].differentiable])
def test_gradients_are_not_all_zero(name: str) -> None:
    """Declaring a metric differentiable promises a gradient that one can use."""
    assert all(gradient.abs().max() > 0 for gradient in _gradients(inputs_for(METRICS[name], lambda x: x), name, {}))


def test_entropy_gradient_survives_a_causal_softmax() -> None:
    """The derivative of −a·log a is infinite at 0; times the 0 of the softmax it would be NaN."""
    logits = gaussian(BATCH, 2, TOKENS, TOKENS).requires_grad_()
    attention_entropy(attention_maps(logits, causal=True)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() > 0
