"""Accuracy of a variant against the plain model in four settings: what both claims about its benefit rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from unsmooth.errors import expected
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Measured
from unsmooth.evidence.figure import Figure, Panel, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Verdict, above
from unsmooth.evidence.interval import Interval, over_seeds
from unsmooth.evidence.study import Trained
from unsmooth.numbers import Precision

SETTINGS = {
    "full": "all training images",
    "25": "25 % of the training images",
    "10": "10 % of the training images",
    "corrupted": "corrupted test images",
}
GRAM_ALONE = (
    "Trained in the remedies' default form, H from a Gram matrix and so symmetric, at the plain model's learning rate. "
    "The paper's last version has a general basis: bases-compared sets both beside the plain model, on all images and "
    "for fewer epochs."
)


def compare(bench: Bench, variant: str) -> dict[str, Any]:
    """Accuracies of the plain model and the variant: in each setting, and by corruption and severity.

    Returns:
        `accuracy`: setting to variant to seed to accuracy. `corrupted`: variant to seed to corruption to accuracies at
        `severities`, of which the setting "corrupted" is the mean. `clean`: of the same images as they are.
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
    }


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


def judge_benefit(measured: Measured, variant: str) -> Judgement:
    """Paired differences in percentage points: the mean over the settings decides, and no setting may be worse."""
    gaps = {setting: _gaps(found, variant) for setting, found in measured["accuracy"].items()}
    overall = over_seeds([fmean(by_seed) for by_seed in zip(*gaps.values(), strict=True)])
    single = {setting: over_seeds(by_seed) for setting, by_seed in gaps.items()}
    findings = [
        Finding(f"accuracy in points, {variant} minus plain, mean over the four settings", overall, above(overall)),
        *(
            Finding(f"accuracy in points, {variant} minus plain, {SETTINGS[setting]}", gap)
            for setting, gap in single.items()
        ),
    ]
    return Judgement(tuple(findings), _words(measured, variant, single), benefit(overall, single.values()))


def benefit(overall: Interval, single: Iterable[Interval]) -> Verdict:
    """The rule: a mean above 0 confirms unless a setting lies below, a mean below 0 refutes.

    >>> better, worse = Interval(1.0, 0.5, 1.5, 3), Interval(-1.0, -1.5, -0.5, 3)
    >>> benefit(better, [better, better]), benefit(better, [better, worse]), benefit(worse, [better, worse])
    ('confirmed', 'undecided', 'refuted')
    """
    said = above(overall)
    return "undecided" if said == "confirmed" and any(one.high < 0 for one in single) else said


def _gaps(found: Mapping[str, Mapping[str, float]], variant: str) -> list[float]:
    return [100 * (found[variant][seed] - found["plain"][seed]) for seed in sorted(found["plain"], key=int)]


def _words(measured: Measured, variant: str, single: Mapping[str, Interval]) -> str:
    plain = {setting: 100 * fmean(found["plain"].values()) for setting, found in measured["accuracy"].items()}
    said = (
        f"{SETTINGS[setting]} {Precision(2)(gap.value, signed=True)} on {Precision(1)(plain[setting])} %"
        for setting, gap in single.items()
    )
    return f"Percentage points that {variant} adds to the plain model: {', '.join(said)}."


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
