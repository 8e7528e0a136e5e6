"""Conditions for scripts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsmooth
from unsmooth import UnsmoothError
from unsmooth.scanning.condition import Condition


@pytest.fixture(scope="module")
def scan():
    x = torch.ones(2, 4, 8) + 0.01 * torch.randn(2, 4, 8)
    return unsmooth.scan(nn.Sequential(nn.Identity(), nn.Identity()), x, blocks="*", progress=False)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("mean_cosine@last>0.95", True),
        ("mean_cosine > 0.95", True),
        ("mean_cosine@1:residual >= 0.5", True),
        ("mean_cosine@first<0.95", False),
        ("token_diversity@any>1e-1", False),
        ("token_diversity@any<=.1", True),
    ],
)
def test_conditions(scan, text, holds):
    assert (Condition.parse(text).holds(scan) is not None) == holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mean_cosine@last", "a condition METRIC@LAYER>NUMBER"),
        ("mean_cosin@last>0.5", "Did you mean 'mean_cosine'"),
        ("mean_cosine@last=0.5", "a condition"),
        ("mean_cosine@last>1e999", "a condition"),
        ("mean_cosine@9>0.5", "a layer from 0 to 2"),
        ("effective_rank@last>0.5", "a known metric of this scan"),
        ("mean_cosine@last:mlp>0.5", "a site where"),
    ],
)
def test_bad_conditions_say_what_to_write(scan, text, message):
    with pytest.raises(UnsmoothError, match=message):
        Condition.parse(text).holds(scan)


def test_nan_meets_every_condition():
    broken = unsmooth.scan(nn.Sequential(nn.Identity()), torch.full((2, 3, 4), torch.nan), blocks="*", progress=False)
    assert Condition.parse("mean_cosine@last>0.95").holds(broken) is not None


@pytest.mark.parametrize(
    "text", ["mean_cosine@last>0.95", "mean_cosine(absolute=True)@any<=-2", "mean_cosine@vision:2:mlp<0.5"]
)
def test_shown_as_written(text):
    assert str(Condition.parse(text)) == text


def test_a_stack_of_a_model_that_has_one(scan):
    with pytest.raises(UnsmoothError, match=r"only one but got .encoder.\. Try .mean_cosine@last>0\.5"):
        Condition.parse("mean_cosine@encoder:last>0.5").holds(scan)
