"""Declared chance levels against simulated independent tokens."""

from __future__ import annotations

import math

import pytest
import torch

from tests.functional.cases import PER_SEQUENCE, attention_maps, gaussian
from unsmooth.functional import METRICS, attention_entropy, attention_sink, token_similarity

SEQUENCES = 400


@pytest.mark.parametrize("name", [name for name in PER_SEQUENCE if METRICS[name].chance])
@pytest.mark.parametrize(("n", "d"), [(32, 16), (12, 48)])
def test_chance_level(name: str, n: int, d: int) -> None:
    metric = METRICS[name]
    assert metric.chance is not None
    count = 2 if metric.reads == "pair" else 1
    value = metric.function(*(gaussian(SEQUENCES, n, d, seed=k) for k in range(count)))
    level = metric.chance(float(n), d)
    error = 4.0 * float(value.std()) / math.sqrt(SEQUENCES)
    if "approximately" in metric.chance_note:
        error += 0.02 * max(1.0, abs(level))
    assert abs(float(value.mean()) - level) <= error + 1e-12


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.chance])
def test_chance_level_of_one_token_is_defined(name: str) -> None:
    """Scans average the level over lengths, one token included."""
    chance = METRICS[name].chance
    assert chance is not None
    assert math.isfinite(chance(1.0, 16))


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if not metric.chance])
def test_no_chance_level_is_explained(name: str) -> None:
    assert METRICS[name].chance_note.startswith(("none: ", "no closed form", "1 for uniform", "uniform attention"))


@pytest.mark.parametrize("n", [4, 16, 64])
def test_token_similarity_of_independent_tokens_is_one_over_n(n: int) -> None:
    """Trap: the baseline is 1/n and not 0, so lengths do not compare."""
    value = token_similarity(gaussian(SEQUENCES, n, 32, seed=n))
    assert abs(float(value.mean()) * n - 1.0) < 0.1


@pytest.mark.parametrize("causal", [False, True])
def test_uniform_attention_is_the_documented_baseline(causal: bool) -> None:
    n = 8
    uniform = attention_maps(torch.zeros(1, 2, n, n), causal=causal)
    sink = sum(1.0 / (i + 1) for i in range(n)) / n if causal else 1.0 / n
    torch.testing.assert_close(attention_entropy(uniform), torch.ones(1))
    torch.testing.assert_close(attention_sink(uniform), torch.tensor([sink]))
