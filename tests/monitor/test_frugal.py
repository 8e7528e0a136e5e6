"""A look gathers what its readings show, and nothing else."""

from __future__ import annotations

import pytest
import torch

import unsmooth
from tests.monitor.training import DIM, TOKENS, make
from unsmooth import Monitor
from unsmooth.functional import METRICS, parse_metric
from unsmooth.functional._profile import LayerPairs, Profile
from unsmooth.monitor.probe import Probe
from unsmooth.networks import ViT, ViTConfig
from unsmooth.scanning import collect

WITH_PROFILES = [name for name, metric in METRICS.items() if metric.profile is not None]


def test_there_are_profiles_that_a_look_could_waste_its_time_on() -> None:
    kinds = {type(METRICS[name].profile) for name in WITH_PROFILES}
    assert kinds == {Profile, LayerPairs}


@pytest.mark.parametrize("name", [name for name, one in METRICS.items() if one.reads in ("tokens", "pair", "grid")])
def test_nothing_is_gathered_beside_the_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*given: object) -> None:
        raise AssertionError("a reading shows no tokens that stand out")

    monkeypatch.setattr(collect, "find_confounds", unwanted)
    torch.manual_seed(0)
    model = ViT(ViTConfig(image=8, patch=2, dim=12, depth=2, heads=2, classes=3))
    [collector] = Probe(model, [parse_metric(name)], ("residual",))(torch.randn(3, 3, 8, 8))
    assert collector.gatherings == []
    assert collector.confounds is None
    assert collector.state is not None
    # Three sums for each layer and metric, four for each layer, three for each metric, and two counts.
    layers = len(collector.places)
    assert sum(kept.numel() for kept in collector.state.by_name().values()) == 7 * layers + 3 + 2


def test_the_numbers_are_those_of_a_scan_that_gathers_more() -> None:
    model, batch = make(), torch.randn(3, TOKENS, DIM)
    names = [name for name in WITH_PROFILES if METRICS[name].reads != "grid"]
    with Monitor(model, every=100, probe=batch, sinks=(), metrics=names) as monitor:
        pass
    found = unsmooth.scan(model, batch, metrics=names, progress=False)
    assert {profile.metric for profile in found.profiles} == set(names)
    assert monitor.last is not None
    for name in names:
        assert monitor.last.curve(name) == found.curve(name)
