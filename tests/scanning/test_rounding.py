"""What rounding of the activations to their type does to numbers near collapse, and that a scan says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.functional import parse_metric, token_diversity
from unsmooth.report.series import chance_levels, series_of
from unsmooth.scanning.chance import rounding_level


def gaussian(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rounding_share(dtype: torch.dtype) -> float:
    """ε²/24: see `rounding_level`."""
    return torch.finfo(dtype).eps ** 2 / 24


def tokens_of(diversity: float) -> Tensor:
    return gaussian(4, 1, 512, seed=0) + diversity**0.5 * gaussian(4, 64, 512, seed=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_diversity_at_the_share_is_measured_twice_and_far_above_it_as_it_is(dtype: torch.dtype) -> None:
    share = rounding_share(dtype)
    for times, least, most in ((0.1, 4.0, 8.0), (1.0, 1.7, 2.3), (10.0, 1.05, 1.2), (100.0, 0.99, 1.03)):
        x = tokens_of(times * share)
        measured = token_diversity(x.to(dtype).double()) / token_diversity(x)
        assert ((measured > least) & (measured < most)).all()


@pytest.mark.parametrize(
    "text",
    [
        "token_diversity",
        "token_diversity(squared=False)",
        "dirichlet_energy(normalised=True)",
        "hfc_lfc",
        "rank_one_residual",
    ],
)
def test_the_level_is_what_rounding_adds_to_a_metric(text: str) -> None:
    """To tokens whose own differences are too small to count, but large enough for each to be rounded on its own."""
    metric = parse_metric(text)
    x = tokens_of(9 * rounding_share(torch.bfloat16))
    errors = gaussian(4, 1, 512, seed=0) + (x.bfloat16().double() - x)
    level = rounding_level(metric, torch.bfloat16, 512)
    assert level is not None
    assert float(metric(errors).mean()) == pytest.approx(level, rel=0.25)


@pytest.mark.parametrize("text", ["mean_cosine", "dirichlet_energy", "effective_rank", "attention_entropy"])
def test_metrics_that_are_not_zero_for_equal_tokens_or_not_free_of_scale_have_none(text: str) -> None:
    assert rounding_level(parse_metric(text), torch.bfloat16, 64) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_scan_says_where_a_curve_is_down_to_rounding(dtype: torch.dtype, tmp_path: Path) -> None:
    class Closer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mean = x.double().mean(dim=1, keepdim=True)
            return (mean + (x.double() - mean) / 100).to(x.dtype)

    x = (gaussian(2, 1, 64, seed=0) + gaussian(2, 20, 64, seed=1)).to(dtype)
    scan = unsmooth.scan(nn.Sequential(Closer(), Closer()), x, blocks="*", progress=False)
    card, noted = scan.metrics["token_diversity"], " ".join(scan.notes)
    assert card.rounding == pytest.approx(rounding_share(dtype), rel=0.2)
    drawn = [row["label"] for row in chance_levels(series_of([scan]), "token_diversity")]
    if dtype == torch.bfloat16:
        assert "token_diversity at layer 2 (residual) is down to the rounding of bfloat16 activations" in noted
        assert drawn[1].startswith("rounding ")
    else:
        assert "rounding" not in noted
        assert len(drawn) == 1
    again = unsmooth.load_scan(scan.save(tmp_path))
    assert again.metrics["token_diversity"] == card
