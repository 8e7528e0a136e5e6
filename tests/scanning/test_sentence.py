"""The sentence says what the numbers say."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import unsmooth


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
    assert sentence(0.0).startswith("Tokens grow neither clearly more nor clearly less alike")


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
    assert re.search(r"\(change [+-]\d\.\d\d, not paired by sequence, so without an interval\)", several)
    one = unsmooth.scan(model, ids[:1], progress=False, **options).sentence
    assert "(one sequence, so without an interval)" in one


@pytest.mark.parametrize(("scale", "says"), [(0.02, "neither clearly more nor clearly less"), (1.0, "more")])
def test_without_a_paired_change_ends_whose_intervals_overlap_are_not_told_apart(scale, says):
    model, ids = bert(scale)
    found = unsmooth.scan(model, ids, sites=["attention"], progress=False)
    first, *_, last = found.curve("mean_cosine", "attention")
    assert (first.ci_low <= last.ci_high and last.ci_low <= first.ci_high) == (says != "more")
    assert found.sentence.startswith(f"Tokens grow {says} alike")
