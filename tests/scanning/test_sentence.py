"""The sentence says what the numbers say."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.scanning import Change, Row, Scan
from unsmooth.scanning.sentence import one_sentence


class Mix(nn.Module):
    """x + scale·mean(x): positive scales make tokens alike, negative ones less so."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * x.mean(dim=1, keepdim=True)


def sentence(scale: float, **options) -> str:
    torch.manual_seed(0)
    x = torch.randn(16, 12, 8) + 0.5
    model = nn.Sequential(*(Mix(scale) for _ in range(3)))
    return unsmooth.scan(model, x, blocks="*", progress=False, **options).sentence


@pytest.mark.parametrize("metric", ["mean_cosine", "token_similarity", "token_diversity", "rank_one_residual"])
def test_direction_is_about_alikeness_whichever_way_the_metric_runs(metric):
    assert sentence(0.7, metrics=[metric]).startswith("Tokens grow more alike")
    assert sentence(-0.7, metrics=[metric]).startswith("Tokens grow less alike")


def test_no_change_is_called_none():
    assert sentence(0.0).startswith("Tokens stay about as alike with depth: mean_cosine goes from")


def scan_of(
    metric: str, ends: list[tuple[float, float]], change: tuple[float, float], sequences: int = 8, **more
) -> Scan:
    """A scan of two layers with a half-width around each end, and a change with its own."""
    card = unsmooth.scan(nn.Sequential(Mix(0.0)), torch.randn(2, 3, 4), metrics=[metric], blocks="*", progress=False)
    rows = [
        Row(layer, "residual", metric, mean, 0.1, mean - half, mean + half, sequences, 99)
        for layer, (mean, half) in enumerate(ends)
    ]
    by, half = change
    changes = {metric: Change(by, by - half, by + half, sequences)}
    return Scan("model", tuple(rows), card.metrics, {}, {}, changes=changes, **more)


@pytest.mark.parametrize(
    ("metric", "ends", "change", "says"),
    [
        # Both clear and at least 0.02 for what is at most 1.
        ("mean_cosine", (0.42, 0.45), (0.03, 0.01), "Tokens grow more alike"),
        ("mean_cosine", (0.45, 0.42), (-0.03, 0.01), "Tokens grow less alike"),
        ("mean_cosine", (0.42, 0.45), (0.03, 0.04), "Tokens grow neither clearly"),
        ("mean_cosine", (0.42, 0.41), (-0.01, 0.005), "Tokens stay about as alike"),
        ("mean_cosine", (0.42, 0.435), (0.015, 0.01), "Tokens grow neither clearly"),
        # Two hundredths of the larger end for what has a scale of its own.
        ("mean_distance", (0.004, 0.002), (-0.002, 0.001), "Tokens grow more alike"),
        ("mean_distance", (400.0, 401.0), (1.0, 0.5), "Tokens stay about as alike"),
        # Rounding of float32 makes 6e-16 of it at both ends, or at one.
        ("token_diversity", (3e-16, 5e-15), (4.7e-15, 1e-16), "Down to the rounding of activations"),
        ("token_diversity", (0.5, 5e-15), (-0.5, 0.1), "Tokens grow more alike"),
        ("mean_distance", (400.0, 440.0), (40.0, 0.5), "Tokens grow less alike"),
    ],
)
def test_a_direction_is_told_of_changes_that_are_clear_and_large_enough(metric, ends, change, says):
    assert one_sentence(scan_of(metric, [(end, 0.1) for end in ends], change)).startswith(says)


@pytest.mark.parametrize("metric", ["mean_cosine", "linear_cka"])
def test_one_sequence_tells_no_direction(metric):
    text = sentence(0.7, metrics=[metric], max_batches=1, batch_size=1)
    assert text.startswith(f"From one sequence, which tells no direction: {metric} goes from ")
    assert "change" not in text
    assert "interval" not in text


def test_nan_is_told_first_and_no_direction():
    class Broken(Mix):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.where(torch.arange(len(x)) == 1, math.nan, 1.0)[:, None, None]

    torch.manual_seed(0)
    model = nn.Sequential(Mix(0.7), Broken(0.7))
    found = unsmooth.scan(model, torch.randn(16, 12, 8) + 0.5, blocks="*", progress=False)
    assert not found.healthy
    assert found.sentence.startswith("Activations were NaN or Inf, so no direction is told: mean_cosine goes from 0.")
    assert "alike" not in found.sentence


def test_no_figure_is_a_negative_zero_and_all_have_one_precision():
    text = one_sentence(scan_of("mean_cosine", [(-0.0004, 0.001), (-0.3, 0.001)], (-0.3, 0.001)))
    assert "goes from 0.00 at layer 0 to −0.30 at layer 1 (change −0.30, 95 % interval −0.30 to −0.30)" in text
    wide = one_sentence(scan_of("mean_distance", [(4000.4, 1.0), (30.25, 1.0)], (-3970.1, 1.0)))
    assert "goes from 4000 at layer 0 to 30 at layer 1 (change −3970, 95 % interval −3971 to −3969)" in wide


def test_it_names_both_ends_and_chance():
    text = sentence(0.7)
    assert re.search(r"mean_cosine goes from 0\.\d\d at layer 0 to 0\.\d\d at layer 3", text)
    assert "against 0.00 by chance" in text


def test_a_peak_in_between_is_named():
    torch.manual_seed(0)
    model = nn.Sequential(Mix(3.0), Mix(-0.75))
    found = unsmooth.scan(model, torch.randn(8, 12, 8) + 0.3, blocks="*", progress=False)
    assert "with a peak of" in found.sentence
    assert "at layer 1" in found.sentence


def bert(scale: float = 1.0):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=40, initializer_range=scale, **sizes))
    return model, torch.randint(5, 40, (4, 7))


@pytest.mark.parametrize(
    ("options", "curve"),
    [
        ({"sites": ["attention"]}, "mean_cosine at the attention site goes from"),
        ({"metrics": ["linear_cka", "mean_cosine"]}, "linear_cka goes from"),
        ({"metrics": ["escalation_rate"]}, "escalation_rate goes from"),
    ],
)
def test_without_a_paired_change_there_is_no_interval_and_the_reason_is_true(options, curve):
    model, ids = bert()
    several = unsmooth.scan(model, ids, progress=False, **options).sentence
    assert curve in several
    assert re.search(r"\(change [+−]?\d\.\d+, not paired by sequence, so without an interval\)", several)


@pytest.mark.parametrize(("scale", "says"), [(0.02, "neither clearly more nor clearly less"), (1.0, "more")])
def test_without_a_paired_change_ends_whose_intervals_overlap_are_not_told_apart(scale, says):
    model, ids = bert(scale)
    found = unsmooth.scan(model, ids, sites=["attention"], progress=False)
    first, *_, last = found.curve("mean_cosine", "attention")
    assert (first.ci_low <= last.ci_high and last.ci_low <= first.ci_high) == (says != "more")
    assert found.sentence.startswith(f"Tokens grow {says} alike")
