"""Published definitions in training: the numbers of a scan by the same preset, or a line and the usual metrics."""

from __future__ import annotations

import logging

import pytest
import torch

import unsmooth
from tests.monitor.training import DIM, TOKENS, make, same, train
from tests.presets.streams import images, tiny_vit
from unsmooth import Monitor, UnsmoothError
from unsmooth.monitor import read_watched
from unsmooth.presets import PRESETS, Preset

pytest.importorskip("transformers")
USUAL = {"mean_cosine", "token_diversity"}


@pytest.mark.parametrize(
    "name", [name for name, preset in PRESETS.items() if not name.startswith("ethayarajh")] + [PRESETS["vita"]]
)
def test_the_numbers_are_those_of_a_scan(name: str | Preset, tmp_path):
    with Monitor(tiny_vit(), preset=name, probe=images(), out=tmp_path) as monitor:
        pass
    found = unsmooth.scan(tiny_vit(), images(), preset=name, progress=False)
    mine, theirs = ({(row.metric, row.site, row.layer): row.mean for row in one.rows} for one in (monitor.last, found))
    assert mine == pytest.approx(theirs, abs=1e-6, nan_ok=True)
    about = read_watched(tmp_path).about
    assert about["preset"]["name"] == (name if isinstance(name, str) else name.name)
    assert about["definitions"]["tokens"] == found.manifest["definitions"]["tokens"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "gong"}, "a model with one class token in front of its patches for preset 'gong'"),
        ({"preset": PRESETS["gong"]}, "a model with one class token in front of its patches for preset 'gong'"),
        ({"preset": "ethayarajh_mev"}, "which reads words"),
        ({"preset": "ethayarajh_intra_sentence"}, "the difference of two"),
        ({"preset": "vitta"}, "Did you mean 'vita'?"),
        ({"preset": "vita", "tokens": "all"}, "which fixes tokens"),
        ({"preset": 3}, "a preset by name"),
    ],
)
@pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])
def test_one_that_does_not_fit_is_told_and_the_usual_is_measured(options, message, probe, caplog):
    without = train(make())
    model = make()
    with (
        caplog.at_level(logging.WARNING),
        Monitor(model, every=1, probe=probe, sinks=(), rules=["mean_cosine > 2"], **options) as monitor,
    ):
        assert same(train(model, monitor), without)
    assert {row.metric for row in monitor.last.rows} == USUAL
    [line] = [record.message for record in caplog.records]
    assert "The monitor does without the preset " in line
    assert message in line
    with pytest.raises(UnsmoothError), Monitor(make(), sinks=(), strict=True, **options):
        pass


def test_rules_are_looked_at_beside_it():
    with Monitor(
        make(), preset="vita", rules=["effective_rank@last:mlp > 0"], probe=torch.randn(2, TOKENS, DIM), sinks=()
    ) as monitor:
        assert [alarm.rule for alarm in monitor.alarms] == ["effective_rank@last:mlp > 0"]
        assert monitor.last.curve("mean_cosine(absolute=True, with_self=True)")
