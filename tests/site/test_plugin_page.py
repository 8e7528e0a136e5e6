"""What docs/plugins.md tells to write is installed and used."""

from __future__ import annotations

import re
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import unsmooth
from tests.distributions import install, unread
from unsmooth.functional import METRICS
from unsmooth.models import HOSTS
from unsmooth.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


class Slab(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.norm(x))


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"<!-- plugin: run by a test -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    entries = {
        "unsmooth.metrics": {"norm_spread": "norm_spread"},
        "unsmooth.hosts": {"slab": "slab"},
        "unsmooth.presets": {"our_figure": "our_figure"},
    }
    install(tmp_path, "their_page", "\n".join(blocks), entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    x, real = torch.randn(2, 5, 4), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    asked = ["norm_spread", "norm_spread(relative=True)"]
    with unread(METRICS, HOSTS, PRESETS):
        model = nn.Sequential(Slab(), Slab())
        found = unsmooth.scan(model, x, metrics=asked, sites=("residual", "normed", "mlp"), progress=False)
        published = unsmooth.scan(model, x, preset="our_figure", progress=False)
        compared = unsmooth.compare_presets(model, x, progress=False)
        padded = METRICS["norm_spread"].function(x, real)
    norms = numpy.linalg.norm(x.double().numpy(), axis=-1)
    assert found.rows[0].mean == pytest.approx(norms.std(axis=1).mean(), rel=1e-5)
    assert found.rows[1].mean == pytest.approx((norms.std(axis=1) / norms.mean(axis=1)).mean(), rel=1e-5)
    assert padded.tolist() == pytest.approx([norms[0].std(), norms[1, :3].std()], rel=1e-5)
    assert {row.site for row in found.rows} == {"residual", "normed", "mlp"}
    assert list(published.metrics) == ["mean_cosine"]
    assert "Ourselves 2026" in published.notes[-1]
    assert [row.mean for row in compared.curve("our_figure")] == [row.mean for row in published.curve()]
