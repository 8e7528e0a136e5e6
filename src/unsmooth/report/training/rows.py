"""From runs to rows of numbers: what the pictures of a training are drawn from.

Whatever is not a finite number is None, so that JSON can carry it and a chart shows a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from unsmooth.report.training.variants import Variant
from unsmooth.training.folder import Line

Rows = list[dict[str, Any]]
QUANTILES = ("lowest", "q05", "q25", "q50", "q75", "q95", "highest")
SHADES = {"start": 0.55, "middle": 0.75, "end": 1.0}
Source = Literal["training", "evaluations"]


def finite(value: object) -> float | None:
    """Five significant digits of a number, None of anything else.

    >>> finite(1 / 3), finite(float("nan")), finite("0.5"), finite(True)
    (0.33333, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of them, evenly chosen, with the first and the last.

    >>> evenly(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def curve_rows(variant: Variant, source: Source, field: str, line: str, most: int = 2000) -> Rows:
    """One quantity of the log over the training, in at most `most` points.

    Longer logs are cut into bins of equally many steps; each gives the mean of its values. The band reaches from the
    smallest to the largest value in the bin, or, of several seeds, from the smallest to the largest seed's mean.
    """
    logs = [{entry["step"]: entry for entry in getattr(run, source)} for run in variant.runs]
    steps = sorted({step for log in logs for step, entry in log.items() if field in entry})
    width = max(1, math.ceil(len(steps) / most))
    bins = [steps[start : start + width] for start in range(0, len(steps), width)]
    return [_bin_row(chunk, logs, field, line) for chunk in bins]


def _bin_row(steps: Sequence[int], logs: Sequence[Mapping[int, Line]], field: str, line: str) -> dict[str, Any]:
    found = [[value for step in steps if (value := finite(log.get(step, {}).get(field))) is not None] for log in logs]
    found = [values for values in found if values]
    means = [fmean(values) for values in found]
    inside = means if len(logs) > 1 else [value for values in found for value in values]
    epochs = [value for log in logs for step in steps if (value := finite(log.get(step, {}).get("epoch"))) is not None]
    return {
        "line": line,
        "count": len(steps),
        "step": round(fmean(steps)),
        "epoch": finite(fmean(epochs)) if epochs else None,
        "mean": finite(fmean(means)) if means else None,
        "low": finite(min(inside)) if inside else None,
        "high": finite(max(inside)) if inside else None,
    }


def has_band(rows: Rows) -> bool:
    """Whether any point has a band wide enough to see."""
    return any(row["low"] is not None and row["low"] < row["high"] for row in rows)


@dataclass(frozen=True)
class Times:
    """When something was measured: `unit` is what labels count, labels are by step."""

    unit: str
    labels: Mapping[int, str]


def times_of(epochs: Mapping[int, float | None], most: int) -> Times:
    """At most `most` steps with labels that differ: epochs where there is one and they tell all apart, else steps.

    >>> times_of({0: 0.0, 500: 1.0, 1000: 2.0}, 10)
    Times(unit='epoch', labels={0: '0', 500: '1', 1000: '2'})
    >>> times_of({0: 0.0, 10: 0.0}, 10).unit
    'step'
    """
    steps = evenly(sorted(epochs), most)
    labels = {step: f"{epoch:.4g}" for step in steps if (epoch := finite(epochs[step])) is not None}
    if len(set(labels.values())) == len(steps) and max((finite(epochs[step]) or 0 for step in steps), default=0) >= 1:
        return Times("epoch", labels)
    return Times("step", {step: f"{step:,}" for step in steps})


Grid = Mapping[tuple[int, int], float | None]
"""Value by step and layer."""


def grid_rows(grids: Sequence[Grid], times: Times) -> Rows:
    """Cells of a heat map: the mean over seeds, with the smallest and the largest."""
    layers = sorted({layer for grid in grids for _, layer in grid})
    rows = []
    for step, label in times.labels.items():
        for layer in layers:
            values = [value for grid in grids if (value := finite(grid.get((step, layer)))) is not None]
            row = {"time": label, "step": step, "layer": layer, "value": finite(fmean(values)) if values else None}
            if len(grids) > 1:
                row |= {"low": min(values, default=None), "high": max(values, default=None)}
            rows.append(row)
    return rows


def similarity_grids(variant: Variant, metric: str, site: str) -> list[Grid]:
    """A metric of the scans of every seed."""
    return [
        {
            (one.step, row.layer): finite(row.mean)
            for one in run.measurements
            for row in one.scan.rows
            if row.metric == metric and row.site == site
        }
        for run in variant.runs
    ]


def spectrum_grids(variant: Variant, quantity: str) -> list[Grid]:
    """A quantity of the spectra of every seed."""
    found = [spectrum_layers(run.spectra) for run in variant.runs]
    return [{place: finite(layer.get(quantity)) for place, layer in layers} for layers in found]


def spectrum_layers(spectra: Iterable[Line]) -> list[tuple[tuple[int, int], Mapping[str, Any]]]:
    """Every layer of every measurement, with its step and number; what has no such form is left out."""
    return [
        ((line["step"], layer["layer"]), layer)
        for line in spectra
        if isinstance(line.get("layers"), list)
        for layer in line["layers"]
        if isinstance(layer, Mapping) and isinstance(layer.get("layer"), int)
    ]


def quantile_rows(variant: Variant, number: int, epochs: Mapping[int, float | None]) -> Rows:
    """The quantiles of one layer over the training; of several seeds, their means."""
    found: dict[int, list[Sequence[Any]]] = {}
    for run in variant.runs:
        for (step, layer), entry in spectrum_layers(run.spectra):
            values = entry.get("quantiles")
            if layer == number and isinstance(values, list) and len(values) == len(QUANTILES):
                found.setdefault(step, []).append(values)
    rows = []
    for step in sorted(found):
        row: dict[str, Any] = {"step": step, "epoch": finite(epochs.get(step))}
        for name, column in zip(QUANTILES, zip(*found[step], strict=True), strict=True):
            values = [value for one in column if (value := finite(one)) is not None]
            row[name] = finite(fmean(values)) if values else None
        rows.append(row)
    return rows


def moments_of(steps: Sequence[int]) -> dict[str, int]:
    """Start, middle and end among measured steps, as far as they differ.

    >>> moments_of([0, 10, 100, 200]), moments_of([0, 5]), moments_of([7])
    ({'start': 0, 'middle': 100, 'end': 200}, {'start': 0, 'end': 5}, {'end': 7})
    """
    if not steps:
        return {}
    first, last = steps[0], steps[-1]
    between = [step for step in steps if first < step < last]
    found = {"start": first} if first < last else {}
    if between:
        found["middle"] = min(between, key=lambda step: abs(step - (first + last) / 2))
    return found | {"end": last}


def moment_rows(variant: Variant, grids: Sequence[Grid], times: Times) -> Rows:
    """The layer curves at the start, in the middle and at the end."""
    rows: Rows = []
    for moment, step in moments_of(sorted({step for grid in grids for step, _ in grid})).items():
        label = times.labels.get(step, f"step {step:,}")
        found = grid_rows(grids, Times(times.unit, {step: label}))
        said = {"line": variant.name, "moment": moment, "shade": SHADES[moment], "low": None, "high": None}
        rows += [{**said, **row} for row in found]
    return rows
