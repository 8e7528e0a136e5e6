"""Layers and batches that are measured together have the numbers that each has alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from unsmooth.functional import METRICS
from unsmooth.models import load
from unsmooth.scanning import collect, line
from unsmooth.scanning.plan import check_metrics
from unsmooth.scanning.result import Scan

TEXTS = (
    "a cat sat on the mat",
    "a dog",
    "one cat saw one dog run past rain",
    "the mat",
    "a cat and a dog sat on the mat past rain",
    "rain",
    "a dog saw a cat",
)
METRICS_ASKED = [
    *(name for name, metric in METRICS.items() if metric.default),
    "effective_rank",
    "mean_cosine(with_self=True)",
    "escalation_rate",
    "random_pair_cosine",
]


def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "_ROOM", 1)
    monkeypatch.setattr(collect, "ENOUGH", 1)


def assert_same(one: Scan, two: Scan) -> None:
    assert [(row.layer, row.site, row.metric, row.sequences, row.tokens) for row in one.rows] == [
        (row.layer, row.site, row.metric, row.sequences, row.tokens) for row in two.rows
    ]
    for first, second in zip(one.rows, two.rows, strict=True):
        assert first.mean == pytest.approx(second.mean, rel=1e-5, abs=1e-6, nan_ok=True), first
        assert first.std == pytest.approx(second.std, rel=1e-4, abs=1e-5, nan_ok=True), first
    for name, change in one.changes.items():
        assert change.mean == pytest.approx(two.changes[name].mean, rel=1e-4, abs=1e-5, nan_ok=True)
    for layer, other in zip(one.confounds, two.confounds, strict=True):
        assert layer.massive_tokens == other.massive_tokens
        assert layer.outlier_dimensions == other.outlier_dimensions
        assert layer.without_both == pytest.approx(other.without_both, abs=1e-5, nan_ok=True)
    assert one.notes == two.notes


@pytest.mark.parametrize("tokens", ["content", "all"])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_texts_of_many_lengths(bert_folder: Any, monkeypatch: Any, tokens: str, batch_size: int) -> None:
    model = load(str(bert_folder))
    options = {"metrics": METRICS_ASKED, "sites": "all", "tokens": tokens, "progress": False}
    together = unsmooth.scan(model, list(TEXTS), batch_size=batch_size, **options)
    nobody_waits(monkeypatch)
    assert_same(together, unsmooth.scan(model, list(TEXTS), batch_size=batch_size, **options))


def test_what_stands_out_is_counted_once_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(21, 9, 16, generator=torch.Generator().manual_seed(0))
    x[::2, 4] *= 40.0
    x[::3, :, 5] += 30.0
    x[7] = torch.nan
    model = nn.Sequential(*(nn.Identity() for _ in range(4)))
    options = {"blocks": "*", "batch_size": 2, "progress": False}
    together = unsmooth.scan(model, x, **options)
    assert [(token.position, token.share) for token in together.confounds[1].massive_tokens] == [(4, 11 / 20)]
    assert [(one.dimension, one.share) for one in together.confounds[1].outlier_dimensions] == [(5, 7 / 20)]
    assert "in batch 3 (counted from 0)" in " ".join(together.notes)
    nobody_waits(monkeypatch)
    assert_same(together, unsmooth.scan(model, x, **options))


class Twice(nn.Module):
    """Runs its blocks on something else first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Identity(), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        self.inner(torch.ones_like(x)[:, :2])
        found: Tensor = self.inner(x)
        return found


def test_of_a_stack_that_runs_twice_the_last_run_counts() -> None:
    x = torch.randn(5, 6, 8, generator=torch.Generator().manual_seed(0))
    model = Twice()
    anatomy = unsmooth.models.find_anatomy(model.inner, "*")
    collector = collect.Collector(check_metrics(None), 0, torch.device("cpu"))
    with anatomy.watch(collector, ("residual",)) as collector.watch, torch.no_grad():
        collector.begin(collect.EVERYTHING)
        model(x)
        collector.end(0)
    assert [place.layer for place in collector.places] == [0, 1, 2]
    assert collector.state is not None
    assert collector.state.tokens.tolist() == [30.0] * 3
