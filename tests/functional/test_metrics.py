"""Every metric against its float64 reference, on ordinary and on nasty input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.functional.cases import (
    BATCH,
    PER_SEQUENCE,
    SETTINGS,
    Case,
    agreement_cases,
    attention_maps,
    gaussian,
    inputs_for,
    masked,
    metrics_reading,
    setting_id,
)
from tests.functional.references import ENTRIES
from unsmooth.functional import METRICS, Tokens

with_every_setting = pytest.mark.parametrize(("name", "options"), SETTINGS, ids=setting_id)
with_every_metric = pytest.mark.parametrize("name", METRICS)


def assert_agree(got: Tensor, want: list[float], where: str = "") -> None:
    """1e-5·max(1, |value|), the accuracy that the library promises."""
    for sequence, (value, reference) in enumerate(zip(got.tolist(), want, strict=True)):
        allowed = 1e-5 * max(1.0, abs(reference))
        assert abs(value - reference) <= allowed, f"{where}[{sequence}]: {value} against {reference}"


def test_every_metric_has_a_reference() -> None:
    assert set(METRICS) == set(ENTRIES)


@with_every_metric
def test_every_option_is_tested(name: str) -> None:
    tested = {option for options in ENTRIES[name].options for option in options}
    assert tested == set(METRICS[name].options)


@with_every_setting
def test_agrees_with_reference(name: str, options: dict[str, Any]) -> None:
    for label, case in agreement_cases(METRICS[name]).items():
        assert_agree(case.measure(METRICS[name], **options), case.expect(METRICS[name], **options), label)


@with_every_setting
def test_agrees_on_very_long_input(name: str, options: dict[str, Any]) -> None:
    metric = METRICS[name]
    if metric.reads == "attention":
        case = Case((attention_maps(gaussian(1, 1, 1500, 1500), causal=True),))
    else:
        # Shorter where fast code and reference both go through all pairs.
        n = 8_000 if name == "mean_distance" or options.get("absolute") else 20_000
        n = min(n, ENTRIES[name].longest)
        inputs = (gaussian(1, n, 4) + 0.1, gaussian(1, n, 3, seed=1) - 0.2)
        case = Case(inputs if metric.reads == "pair" else inputs[:1])
    assert_agree(case.measure(metric, **options), case.expect(metric, **options))


@with_every_setting
@settings(max_examples=15, deadline=None)
@given(real=st.lists(st.booleans(), min_size=2, max_size=9), seed=st.integers(0, 10**6))
def test_masked_tokens_do_not_count(name: str, options: dict[str, Any], real: list[bool], seed: int) -> None:
    """The value with padding anywhere is the value of the real tokens alone."""
    metric, keep = METRICS[name], torch.tensor([real])
    if metric.reads == "attention":
        full: tuple[Tensor, ...] = (attention_maps(gaussian(1, 2, len(real), len(real), seed=seed).double()),)
    else:
        full = (gaussian(1, len(real), 5, seed=seed).double(), gaussian(1, len(real), 5, seed=seed + 1).double())
        full = full if metric.reads == "pair" else full[:1]
    padded = masked(Case(full), keep)
    got = padded.measure(metric, **options)
    if not any(real):
        assert got.item() == ENTRIES[name].zero
        return
    short = tuple(t[:, :, keep[0]][..., keep[0]] if t.ndim == 4 else t[:, keep[0]] for t in padded.inputs)
    torch.testing.assert_close(got, Case(short).measure(metric, **options), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_degenerate_values_are_the_documented_ones(name: str) -> None:
    metric, entry = METRICS[name], ENTRIES[name]
    single = inputs_for(metric, lambda x: x, n=1)
    torch.testing.assert_close(single.measure(metric), torch.full((BATCH,), entry.single))
    zero = Case(tuple(torch.zeros_like(tensor) for tensor in inputs_for(metric, lambda x: x).inputs))
    assert zero.measure(metric).tolist() == [entry.zero] * BATCH
    empty = masked(zero, torch.zeros(BATCH, zero.inputs[0].shape[-2], dtype=torch.bool))
    assert empty.measure(metric).tolist() == [entry.zero] * BATCH


@with_every_setting
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_returns_one_float_per_sequence(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    case = inputs_for(METRICS[name], lambda x: x)
    value = Case(tuple(tensor.to(dtype) for tensor in case.inputs)).measure(METRICS[name], **options)
    assert value.shape == (BATCH,)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@with_every_setting
def test_leaves_its_input_alone(name: str, options: dict[str, Any]) -> None:
    case = masked(inputs_for(METRICS[name], lambda x: x), torch.arange(12).expand(BATCH, 12) < 9, garbage=7.0)
    before = [tensor.clone() for tensor in case.inputs]
    case.measure(METRICS[name], **options)
    assert all(torch.equal(old, new) for old, new in zip(before, case.inputs, strict=True))


@with_every_setting
def test_autocast_changes_nothing(name: str, options: dict[str, Any]) -> None:
    """A hook runs inside the user's autocast, which would turn a float32 matrix product into a bfloat16 one."""
    case = inputs_for(METRICS[name], lambda x: x + 1.0)
    plain = case.measure(METRICS[name], **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = case.measure(METRICS[name], **options)
    torch.testing.assert_close(inside, plain, rtol=1e-6, atol=1e-6)


@with_every_setting
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_real_token_shows(name: str, options: dict[str, Any], broken: float) -> None:
    """NaN or Inf in a real token gives NaN for its sequence and leaves the others as they are."""
    case = inputs_for(METRICS[name], lambda x: x)
    healthy = case.measure(METRICS[name], **options)
    for tensor in case.inputs:
        tensor[1, ..., 3, 0] = broken
    value = case.measure(METRICS[name], **options)
    assert not value[1].isfinite()
    torch.testing.assert_close(value[[0, 2]], healthy[[0, 2]])


@pytest.mark.parametrize("name", metrics_reading("tokens"))
def test_what_overflows_is_no_number_or_the_right_one(name: str) -> None:
    x = gaussian(BATCH, 12, 7).float() * 1e20
    value, exact = METRICS[name].function(x), METRICS[name].function(x.double())
    told = value.isfinite()
    torch.testing.assert_close(value[told].double(), exact[told].double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", metrics_reading("tokens"))
def test_shared_tokens_give_the_same_numbers(name: str) -> None:
    """One `Tokens` for all metrics, as a scan does, and in whatever order they come."""
    x, mask = gaussian(BATCH, 12, 7), torch.arange(12).expand(BATCH, 12) < 9
    shared = Tokens(x, mask)
    for other in metrics_reading("tokens"):
        METRICS[other].function(shared)
    assert torch.equal(METRICS[name].function(shared), METRICS[name].function(x, mask))


@pytest.mark.parametrize("name", metrics_reading("pair"))
def test_pairs_share_the_mask_of_tokens(name: str) -> None:
    pair = METRICS[name].function
    x, y = gaussian(BATCH, 12, 7), gaussian(BATCH, 12, 5, seed=1)
    mask = torch.arange(12).expand(BATCH, 12) < 9
    want = pair(x, y, mask)
    for inputs in ((Tokens(x, mask), y), (x, Tokens(y, mask)), (Tokens(x, mask), Tokens(y, mask))):
        assert torch.equal(pair(*inputs), want)
