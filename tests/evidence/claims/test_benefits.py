"""What sharpening and smoothing do to accuracy: both claims have one rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
import pytest
from scipy.stats import ttest_1samp

from tests.evidence.trained import bench, run
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import CLAIMS, STUDIES, Bench, Trained
from unsmooth.training import Config

NAMES = {"sharpening-helps": "sharpen", "smoothing-helps": "smooth"}
PLAIN = {"full": 0.6, "25": 0.4, "10": 0.2, "corrupted": 0.5}
SETTINGS = list(PLAIN)


def measured(variant: str, points: dict[str, list[float]]) -> dict[str, Any]:
    """Three seeds whose plain models are alike; the variant's are better by so many points."""
    accuracy = {
        setting: {
            "plain": {str(seed): PLAIN[setting] for seed in range(3)},
            variant: {str(seed): PLAIN[setting] + gap / 100 for seed, gap in enumerate(gaps)},
        }
        for setting, gaps in points.items()
    }
    both, by_name = ("plain", variant), {"fog": [0.5, 0.3], "snow": [0.7, 0.5]}
    corrupted = {one: {str(seed): by_name for seed in range(3)} for one in both}
    clean = {one: {str(seed): 0.6 for seed in range(3)} for one in both}
    return {"accuracy": accuracy, "corrupted": corrupted, "clean": clean, "severities": [1, 5]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gaps", [[1.0, 1.1, 0.9], [-1.0, -1.1, -0.9]])
def test_another_form_than_the_sentences_decides_nothing(name: str, gaps: list[float]) -> None:
    numbers = measured(NAMES[name], dict.fromkeys(SETTINGS, gaps))
    judgement = CLAIMS[name].judge(numbers)
    assert judgement.outcome == "undecided"
    assert {one.outcome for one in judgement.findings} == {None}
    assert judgement.words.startswith("No ")
    assert CLAIMS[name].figure(numbers).panels[0].title == "by setting"


def test_intervals_are_those_of_a_paired_t_test_and_the_general_basis_is_first() -> None:
    points = {"full": [1.0, 2.0, 4.0], "25": [0.5, 0.1, 0.0], "10": [-1.0, 2.0, 0.3], "corrupted": [0.2, 0.1, 0.9]}
    numbers = measured("sharpen", points)
    general = {"plain": {"0": 0.1, "1": 0.2, "2": 0.3}, "sharpen": {"0": 0.13, "1": 0.24, "2": 0.33}}
    numbers |= {"bases": general, "finer": {"plain": {"0": 0.46}, "sharpen": {"0": 0.45}}}
    found = CLAIMS["sharpening-helps"].judge(numbers).findings
    references = [[3.0, 4.0, 3.0], *points.values()]
    assert "general basis" in found[0].what
    assert found[-1].interval.value == pytest.approx(-1.0)
    for finding, values in zip(found[:-1], references, strict=True):
        expected = ttest_1samp(values, 0.0).confidence_interval(0.95)
        got = (finding.interval.value, finding.interval.low, finding.interval.high)
        assert got == pytest.approx((numpy.mean(values), *expected), abs=1e-9)


def looked(shift: float) -> dict[str, Any]:
    found = {"fog": [0.4 + shift, 0.2 + shift], "snow": [0.3 + shift, 0.1 + shift]}
    return {"corrupted": found, "clean": 0.5 + shift, "severities": [1, 5]}


def studies(variant: str, state: str = "finished") -> dict[str, dict[str, dict[int, Trained]]]:
    def seeds(one: str, accuracy: float, **kept: Any) -> dict[int, Trained]:
        return {seed: run(one, seed, accuracy + seed / 100, **kept) for seed in (0, 1)}

    whole = {"plain": seeds("plain", 0.6, looked=looked(0.0)), variant: seeds(variant, 0.62, looked=looked(0.1))}
    if state == "stopped":
        whole[variant][1] = run(variant, 1, 0.3, state="stopped")
    less = {f"{one}-{percent}": seeds(one, percent / 100) for one in ("plain", variant) for percent in (10, 25)}
    bases = {one: seeds(one, accuracy) for one, accuracy in (("plain", 0.3), ("gram", 0.3), ("general", 0.35))}
    return {"steering": whole, "less_data": less, "finer_patches": whole, "bases": bases}


def test_measures_each_setting_from_its_own_runs() -> None:
    found = CLAIMS["sharpening-helps"].measure(bench(**studies("sharpen")))
    assert found["accuracy"]["full"] == {"plain": {"0": 0.6, "1": 0.61}, "sharpen": {"0": 0.62, "1": 0.63}}
    assert found["accuracy"]["10"]["sharpen"] == pytest.approx({"0": 0.1, "1": 0.11})
    assert found["accuracy"]["25"]["plain"] == pytest.approx({"0": 0.25, "1": 0.26})
    assert found["accuracy"]["corrupted"]["plain"] == pytest.approx({"0": 0.25, "1": 0.25})
    assert found["accuracy"]["corrupted"]["sharpen"] == pytest.approx({"0": 0.35, "1": 0.35})
    assert found["bases"] == {"plain": {"0": 0.3, "1": 0.31}, "sharpen": {"0": 0.35, "1": 0.36}}
    assert found["finer"]["sharpen"] == {"0": 0.62, "1": 0.63}
    panels = CLAIMS["sharpening-helps"].figure(found).panels
    by_severity, by_corruption = panels[1], panels[2]
    assert by_severity.series[0].y == pytest.approx([50.0, 35.0, 15.0])
    assert by_corruption.series[0].y == pytest.approx([10.0, 10.0])


def test_a_run_that_stopped_guesses_on_all_images() -> None:
    found = CLAIMS["smoothing-helps"].measure(bench(**studies("smooth", state="stopped")))
    assert found["accuracy"]["full"]["smooth"]["1"] == 0.01
    assert found["accuracy"]["corrupted"]["smooth"]["1"] == pytest.approx(0.01)
    assert found["bases"] == {}
    assert found["clean"]["smooth"] == {"0": 0.6, "1": 0.01}
    assert CLAIMS["smoothing-helps"].figure(found).panels


def test_models_that_nobody_looked_at_are_an_error() -> None:
    unseen = studies("smooth")
    unseen["steering"]["smooth"][0] = run("smooth", 0, 0.6)
    with pytest.raises(UnsmoothError, match="look_again"):
        CLAIMS["smoothing-helps"].measure(bench(**unseen))


def test_less_data_is_steering_with_fewer_images() -> None:
    whole, less = (STUDIES[name].configs(Bench(scale="full")) for name in ("steering", "less_data"))
    limits = {name: config.data.train_limit for name, config in less.items()}
    assert limits == {f"{one}-{percent}": 500 * percent for percent in (10, 25) for one in whole}
    for name, config in less.items():
        assert without_limit(config) == without_limit(whole[name.rpartition("-")[0]])


def without_limit(config: Config) -> Config:
    return replace(config, data=replace(config.data, train_limit=None))


@pytest.mark.parametrize("scale", ["tiny", "small", "full"])
def test_a_batch_fits_into_the_fewest_images(scale: Any) -> None:
    for config in STUDIES["less_data"].configs(Bench(scale=scale)).values():
        assert config.data.train_limit is not None
        assert config.batch <= config.data.train_limit
