"""Accuracy of a variant against the plain model: what is known of both claims about its benefit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from unsmooth.errors import expected
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Measured
from unsmooth.evidence.figure import Figure, Panel, with_intervals
from unsmooth.evidence.finding import Finding, Judgement
from unsmooth.evidence.interval import Interval, over_seeds
from unsmooth.evidence.records import Trained
from unsmooth.numbers import Precision

SETTINGS = {
    "full": "all training images",
    "25": "25 % of the training images",
    "10": "10 % of the training images",
    "corrupted": "corrupted test images",
}
GENERAL = "general"


def compare(bench: Bench, variant: str) -> dict[str, Any]:
    """Accuracies of the plain model and the variant: in each setting, and by corruption and severity.

    Returns:
        `accuracy`: setting to variant to seed to accuracy. `corrupted`: variant to seed to corruption to accuracies at
        `severities`, of which the setting "corrupted" is the mean. `clean`: of the same images as they are. `bases`
        and `finer`: as `accuracy`, of models with the general basis, where there are any, and with finer patches.
    """
    whole, less = bench.study("steering"), bench.study("less_data")
    both = ("plain", variant)
    looks = {one: {str(seed): _look(run, whole["plain"]) for seed, run in whole[one].items()} for one in both}
    corrupted = {one: {seed: look["corrupted"] for seed, look in looks[one].items()} for one in both}
    return {
        "accuracy": {
            "full": {one: _final(whole[one]) for one in both},
            **{percent: {one: _final(less[f"{one}-{percent}"]) for one in both} for percent in ("25", "10")},
            "corrupted": {one: {seed: _mean(found) for seed, found in corrupted[one].items()} for one in both},
        },
        "corrupted": corrupted,
        "clean": {one: {seed: look["clean"] for seed, look in looks[one].items()} for one in both},
        "severities": next(iter(looks["plain"].values()))["severities"],
        "bases": {one: _final(runs) for one, runs in _bases(bench, variant).items()},
        "finer": {one: _final(bench.study("finer_patches")[one]) for one in both},
    }


def _bases(bench: Bench, variant: str) -> dict[str, dict[int, Trained]]:
    """The study of bases has sharpened models alone."""
    if variant != "sharpen":
        return {}
    runs = bench.study("bases")
    return {"plain": runs["plain"], variant: runs[GENERAL]}


def _final(runs: Mapping[int, Trained]) -> dict[str, float]:
    return {str(seed): run.accuracy for seed, run in runs.items()}


def _look(run: Trained, others: Mapping[int, Trained]) -> Mapping[str, Any]:
    """What was found on corrupted images; a run that stopped guesses, whatever is done to them."""
    if run.looked:
        return run.looked
    like = next((other.looked for other in others.values() if other.looked), None)
    if run.made.get("state") != "stopped" or like is None:
        raise expected(f"accuracies of {run.variant} on corrupted images", "none", "`look_again` at the study")
    corrupted = {name: [run.chance for _ in found] for name, found in like["corrupted"].items()}
    return {"corrupted": corrupted, "clean": run.chance, "severities": like["severities"]}


def _mean(found: Mapping[str, Sequence[float]]) -> float:
    return fmean(fmean(by_severity) for by_severity in found.values())


def judge_benefit(measured: Measured, variant: str, missing: str) -> Judgement:
    """Paired differences in percentage points, none of which decides: they are of other forms than the sentence's."""
    single = {setting: over_seeds(_gaps(found, variant)) for setting, found in measured["accuracy"].items()}
    form = "in the Gram form, one scale for all eigenvalues, at the plain model's rate"
    findings = [
        Finding(f"accuracy in points, {variant} minus plain {form}, {SETTINGS[setting]}", gap)
        for setting, gap in single.items()
    ]
    if bases := measured.get("bases"):
        gap = over_seeds(_gaps(bases, variant))
        findings.insert(0, Finding(f"accuracy in points, {variant} minus plain in the general basis, 30 epochs", gap))
    if finer := measured.get("finer"):
        what = f"accuracy in points, {variant} minus plain {form}, patches of 2 at the recipe's rate, 60 epochs"
        findings.append(Finding(what, over_seeds(_gaps(finer, variant))))
    return Judgement(tuple(findings), f"{missing} {_words(measured, variant, single)}", "undecided")


def _gaps(found: Mapping[str, Mapping[str, float]], variant: str) -> list[float]:
    return [100 * (found[variant][seed] - found["plain"][seed]) for seed in sorted(found["plain"], key=int)]


def _words(measured: Measured, variant: str, single: Mapping[str, Interval]) -> str:
    plain = {setting: 100 * fmean(found["plain"].values()) for setting, found in measured["accuracy"].items()}
    said = (
        f"{SETTINGS[setting]} {Precision(2)(gap.value, signed=True)} on {Precision(1)(plain[setting])} %"
        for setting, gap in single.items()
    )
    return f"Percentage points that {variant} in the Gram form adds to the plain model: {', '.join(said)}."


def draw_benefit(measured: Measured, variant: str) -> Figure:
    """Differences by setting, accuracy over severity, and differences by corruption."""
    settings = {SETTINGS[key]: over_seeds(_gaps(found, variant)) for key, found in measured["accuracy"].items()}
    panels = [
        _differences("by setting", "setting", variant, settings),
        _over_severity(measured, variant),
        _differences("by corruption", "corruption", variant, _by_corruption(measured, variant)),
    ]
    return Figure(f"Accuracy of {variant} against plain, mean and 95 % interval over seeds.", panels)


def _differences(title: str, along: str, variant: str, gaps: Mapping[str, Interval]) -> Panel:
    series = with_intervals(f"{variant} minus plain", list(gaps), list(gaps.values()), "points")
    return Panel(title=title, x=along, y="difference in percentage points", series=[series], reference=0.0)


def _by_corruption(measured: Measured, variant: str) -> dict[str, Interval]:
    names = next(iter(measured["corrupted"]["plain"].values()))
    found = {
        name: {one: {seed: fmean(by[name]) for seed, by in runs.items()} for one, runs in measured["corrupted"].items()}
        for name in names
    }
    return {name: over_seeds(_gaps(by_variant, variant)) for name, by_variant in found.items()}


def _over_severity(measured: Measured, variant: str) -> Panel:
    severities = [0, *measured["severities"]]
    series = [with_intervals(one, severities, _curve(measured, one)) for one in ("plain", variant)]
    return Panel(title="by severity, mean over corruptions", x="severity", y="accuracy in %", series=series)


def _curve(measured: Measured, variant: str) -> list[Interval]:
    """Accuracy at severity 0, which is none, and at the others."""
    by_seed = [
        [measured["clean"][variant][seed], *(fmean(values) for values in zip(*by_name.values(), strict=True))]
        for seed, by_name in measured["corrupted"][variant].items()
    ]
    return [over_seeds([100 * value for value in values]) for values in zip(*by_seed, strict=True)]
