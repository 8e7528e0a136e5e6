"""Sentences, facts and captions of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from unsmooth.numbers import Precision, spoken
from unsmooth.report.series import DrawnScan, measured, printable
from unsmooth.report.training.rows import finite
from unsmooth.report.training.variants import Variant, what_ran
from unsmooth.training.trained_run import Measurement, TrainedRun

RESIDUAL = "residual"
SPECTRA = {
    "asymmetry": (
        "asymmetry of H",
        "‖H − Hᵀ‖_F / (2‖H‖_F): 0 where H is symmetric, 1 where it is antisymmetric, about 0.71 at random weights.",
    ),
    "negative_share": (
        "share of negative real parts",
        "Of the eigenvalues of the heads, those with a negative real part: half of them at random weights. "
        "Blue: more than half.",
    ),
    "spectral_radius": ("spectral radius", "The largest modulus of an eigenvalue of the heads."),
    "norm": ("norm of H", "‖H‖₂, the most that H lengthens a vector: no less than its spectral radius."),
}
SIMILARITY_READING = (
    "Every column is a scan at one moment of the training, every row a layer; 0 is the input of the first block. "
    "Columns are evenly spaced, whatever lies between them."
)
MOMENTS_READING = "The first, a middle and the last of these scans, layer by layer."
SPECTRUM_READING = (
    "H = Σ W_V W_O over the heads is what attention writes back of the tokens it reads (P1, arXiv 2401.04301)."
)
QUANTILE_READING = (
    "Eigenvalues of every head's W_V W_O. From the outside in: smallest to largest, the middle 90 %, the middle "
    "half; line: the median."
)


def sentence_of(variant: Variant) -> str:
    """What was trained on what, how well it does, and how token similarity went."""
    run = variant.runs[0]
    data = printable(run.data.get("name") or "unnamed data")
    if run.data.get("synthetic"):
        data = "synthetic data" if data == "synthetic" else f"synthetic data ({data})"
    head = f"{what_ran(run) or variant.name}, trained on {data}{_length(variant)}"
    head += f", {variant.spread}," if variant.spread else ""
    results = list(_results(variant))
    reached = f" reaches {_listed(results)}." if results else ": no evaluation was logged."
    change = similarity_change(variant)
    return head + reached + (f" {change}" if change else "")


def _length(variant: Variant) -> str:
    steps = max((last_step(run) for run in variant.runs), default=0)
    epochs = max((epoch for run in variant.runs if (epoch := last_epoch(run)) is not None), default=None)
    if not steps:
        return ""
    if not epochs or epochs < 1:
        return f" for {steps:,} steps"
    return f" for {spoken(epochs)} {'epoch' if epochs == 1 else 'epochs'} ({steps:,} steps)"


def _results(variant: Variant) -> Iterator[str]:
    """The first metric of the last evaluation, then its loss."""
    for name in [*metrics_of([variant])[:1], "loss"]:
        values = final_values(variant, name)
        if values:
            title = "evaluation loss" if name == "loss" else printable(name.replace("_", " "))
            yield f"{title} {mean_and_spread(values)}"


def similarity_change(variant: Variant) -> str:
    """The first metric at the last layer, from the first measurement to the last; empty where nothing was measured."""
    pairs = measured_pairs([variant])
    runs = [run for run in variant.runs if run.measurements]
    if not pairs or not runs:
        return ""
    metric, site = pairs[0]
    first = [value for run in runs if (value := last_layer(run.measurements[0], metric, site)) is not None]
    last = [value for run in runs if (value := last_layer(run.measurements[-1], metric, site)) is not None]
    if not first or not last:
        return ""
    name = f"{printable(metric)} of the tokens that leave the last layer"
    if all(len(run.measurements) == 1 for run in runs):
        return f"Token similarity ({name}) was measured once: {mean_and_spread(last)}."
    since = "before training" if runs[0].measurements[0].step == 0 else f"at step {runs[0].measurements[0].step:,}"
    until = "at the end" if all(run.state == "finished" for run in runs) else "at the last measurement"
    return f"The {name} went from {mean_and_spread(first)} {since} to {mean_and_spread(last)} {until}."


def last_layer(measurement: Measurement, metric: str, site: str) -> float | None:
    """The value that leaves the last block."""
    found = {row.layer: row.mean for row in measurement.scan.rows if row.metric == metric and row.site == site}
    return finite(found[max(found)]) if found else None


def measured_pairs(variants: Sequence[Variant]) -> list[tuple[str, str]]:
    """Every metric with its site that some scan has; the residual stream before other sites."""
    scans = (one.scan for variant in variants for run in variant.runs for one in run.measurements)
    found = measured(DrawnScan("", scan, "") for scan in scans)
    return sorted(((metric, site) for metric in found for site in found[metric]), key=lambda pair: pair[1] != RESIDUAL)


def pair_title(metric: str, site: str) -> str:
    """A metric as it is chosen: the residual stream goes without saying."""
    return printable(metric if site == RESIDUAL else f"{metric} · {site}")


def metrics_of(variants: Sequence[Variant]) -> list[str]:
    """What evaluations measured besides the loss; accuracy first."""
    names = dict.fromkeys(name for variant in variants for run in variant.runs for name in run.metrics)
    return sorted(names, key=lambda name: "accuracy" not in name)


def final_values(variant: Variant, name: str) -> list[float]:
    """A metric at the last evaluation of every seed that has it."""
    found = (next((line[name] for line in reversed(run.evaluations) if name in line), None) for run in variant.runs)
    return [value for one in found if (value := finite(one)) is not None]


def final_training_loss(run: TrainedRun) -> float | None:
    """The loss of the last line that has one."""
    return next((value for line in reversed(run.training) if (value := finite(line.get("loss"))) is not None), None)


def last_step(run: TrainedRun) -> int:
    """The last step that left a line."""
    return max((line["step"] for line in (*run.training[-1:], *run.evaluations[-1:])), default=0)


def last_epoch(run: TrainedRun) -> float | None:
    """The epoch of the last line."""
    lines = sorted((*run.training[-1:], *run.evaluations[-1:]), key=lambda line: int(line["step"]))
    return finite(lines[-1].get("epoch")) if lines else None


def mean_and_spread(values: Sequence[float]) -> str:
    """A number, or the mean of several with their standard deviation, to the digits that it supports.

    >>> mean_and_spread([0.5]), mean_and_spread([0.61, 0.63, 0.62]), mean_and_spread([])
    ('0.5', '0.620 ± 0.010', '–')
    """
    if len(values) < 2:
        return spoken(values[0] if values else None)
    spread = stdev(values)
    if not spread:
        return spoken(values[0])
    digits = max(0, 1 - int(f"{spread:e}".split("e")[1]))
    say = Precision(digits)
    return f"{say(fmean(values))} ± {say(spread)}"


def duration(seconds: object) -> str:
    """Seconds for people.

    >>> duration(7322.0), duration(75), duration(0.4), duration(None)
    ('2 h 2 min', '1 min 15 s', '0.4 s', '–')
    """
    value = finite(seconds)
    if value is None:
        return "–"
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def facts_of(variant: Variant) -> list[tuple[str, str]]:
    """Key facts, label and text; those that nothing tells of are left out."""
    run = variant.runs[0]
    data: Mapping[str, Any] = run.data
    called = {"train": "train", "test": "held out of it" if data.get("hold_out") else "test"}
    sizes = [f"{count:,} {word}" for key, word in called.items() if isinstance(count := data.get(key), int)]
    parameters = run.manifest.get("parameters")
    seconds = [value for one in variant.runs if (value := finite(one.manifest.get("seconds"))) is not None]
    remedies = printable(" + ".join(run.remedies)) or "none"
    facts = {
        "Data": " · ".join([printable(data.get("name") or ""), *sizes]).strip(" ·"),
        "Parameters": f"{parameters:,}" if isinstance(parameters, int) else "",
        "Remedies": remedies if run.config or run.manifest else "",
        "Seeds" if len(variant.runs) > 1 else "Seed": ", ".join(
            str(one.seed) for one in variant.runs if one.seed is not None
        ),
        "Time": ("mean " if len(seconds) > 1 else "") + duration(fmean(seconds)) if seconds else "",
        "Device": printable(run.manifest.get("device") or ""),
    }
    return [(label, text) for label, text in facts.items() if text]


def banners_of(variant: Variant) -> list[tuple[str, str]]:
    """What a reader must know before believing a number: a bold word and the rest."""
    banners = []
    if any(run.data.get("synthetic") for run in variant.runs):
        banners.append(
            ("Synthetic data.", "It was made up by a generator: these numbers say nothing about any real data set.")
        )
    for state, rest in (
        ("running", "had not ended when this page was written."),
        ("paused", "was paused, to be resumed."),
        ("stopped", "stopped before its end."),
    ):
        found = [run for run in variant.runs if run.state == state]
        if found:
            reasons = dict.fromkeys(str(run.manifest["reason"]) for run in found if run.manifest.get("reason"))
            why = f" Reason: {'; '.join(reasons)}." if reasons else ""
            names = _listed([run.folder.name for run in found])
            banners.append((f"{state.capitalize()}.", printable(f"{names} {rest}{why}")))
    return banners


def _listed(words: Sequence[str]) -> str:
    """Words as in a sentence.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
