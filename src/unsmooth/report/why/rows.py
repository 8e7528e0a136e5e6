"""From findings to rows of numbers: what the pictures of an explanation are drawn from.

Whatever is not a finite number is None or left out, so that JSON can carry it and a chart shows a gap.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unsmooth.numbers import spoken
from unsmooth.report.series import number, printable

if TYPE_CHECKING:
    from unsmooth.explaining.result import Explanation, HeadFinding, LayerFinding

Rows = list[dict[str, Any]]
_CIRCLE_STEPS = 72


@dataclass(frozen=True)
class Look:
    """How a verdict is drawn: a sign that survives grey print, a colour that colour-blind readers tell apart."""

    sign: str
    colour: str


# Darker relatives of Okabe & Ito's colours, on which white signs can be read.
LOOKS = {
    "smoothing": Look("+", "#C75000"),
    "sharpening": Look("−", "#0072B2"),
    "preserving": Look("=", "#6E6E6E"),
    "undecided": Look("?", "#A2507C"),
}
CAUSES = {
    "attention_mean": "attention: its token mean",
    "attention_rest": "attention: the rest",
    "mlp": "MLP",
    "norm": "norm on the stream",
}
PARTS = {
    "mean": "mean → mean",
    "rest": "rest → rest",
    "mean_to_rest": "mean → rest",
    "rest_to_mean": "rest → mean",
}


def rounded(value: float, digits: int = 4) -> float:
    """A number short enough for a page; what is as good as zero is zero.

    >>> rounded(0.123456), rounded(-3e-9)
    (0.1235, 0.0)
    """
    return 0.0 if abs(value) < 1e-6 else float(f"{value:.{digits}g}")


def finite(values: Iterable[complex]) -> list[complex]:
    """Those that are numbers.

    >>> finite([1j, complex("nan"), complex("inf")])
    [1j]
    """
    return [complex(value) for value in values if cmath.isfinite(value)]


def thinned(values: Sequence[complex], most: int | None) -> list[complex]:
    """At most `most` of a cloud: its outer half and an even choice of the crowd within; the fastest mode always.

    >>> thinned([0j, 0.1j, 0.2j, 5 + 0j], 2)
    [(5+0j), 0.2j]
    """
    if most is None or len(values) <= most:
        return list(values)
    centre = sum(values) / len(values)
    ordered = sorted(values, key=lambda value: -abs(value - centre))
    ordered.insert(0, ordered.pop(ordered.index(fastest(values))))
    outer = -(-most // 2)
    inner, left = ordered[outer:], most - outer
    return ordered[:outer] + [inner[index * len(inner) // left] for index in range(left)]


def fastest(values: Sequence[complex]) -> complex:
    """The λ with the largest |1 + λ|, the mode of equal tokens that grows fastest.

    >>> fastest([0.5 + 0j, -3 + 0j])
    (-3+0j)
    """
    return max(values, key=lambda value: abs(1 + value))


def cloud_rows(values: Iterable[complex]) -> Rows:
    """Points of the complex plane."""
    return [{"re": rounded(value.real), "im": rounded(value.imag)} for value in values]


def disc_rows(smallest: float, label: str) -> Rows:
    """The disc outside which the token mean dominates, for attention with the real eigenvalues in [smallest, 1].

    |1 + μλ| is convex in μ, so its largest value over [m, 1] is at an end; at μ = 1 where 2 Re λ + (1 + m)|λ|² ≥ 0,
    which is outside the disc with centre −1/(1 + m) and radius 1/(1 + m) (P1, arXiv 2401.04301).

    >>> [(row["re"], row["im"]) for row in disc_rows(0.0, "")[::18]]
    [(0.0, 0.0), (-1.0, 1.0), (-2.0, 0.0), (-1.0, -1.0)]
    """
    radius = 1 / (1 + smallest)
    return circle_rows(-radius, radius, label)


def circle_rows(centre: float, radius: float, label: str) -> Rows:
    """A circle with its centre on the real axis, from its right end on."""
    turns = (cmath.exp(2j * math.pi * step / _CIRCLE_STEPS) for step in range(_CIRCLE_STEPS))
    points = [centre + radius * turn for turn in turns]
    return [
        {"re": rounded(point.real), "im": rounded(point.imag), "step": step, "circle": label}
        for step, point in enumerate(points)
    ]


def frame_rows(rows: Rows) -> Rows:
    """Two corners of a square that holds all `rows`: both axes then have the same unit.

    >>> frame_rows([{"re": -2.0, "im": -1.0}, {"re": 0.0, "im": 1.0}])
    [{'re': -2.12, 'im': -1.12}, {'re': 0.12, 'im': 1.12}]
    """
    ends = [(min(row[axis] for row in rows), max(row[axis] for row in rows)) for axis in ("re", "im")]
    half = 0.56 * max(high - low for low, high in ends)
    corners = [[(low + high) / 2 + side * half for low, high in ends] for side in (-1, 1)]
    return [{"re": rounded(re, 6), "im": rounded(im, 6)} for re, im in corners]


def clamped(rows: Rows, frame: Rows) -> Rows:
    """Rows moved into the frame: a disc that leaves it runs along its border instead of stretching the axes.

    >>> clamped([{"re": -9.0, "im": 0.5}], [{"re": -2.0, "im": -1.0}, {"re": 0.0, "im": 1.0}])
    [{'re': -2.0, 'im': 0.5}]
    """
    low, high = frame
    axes = ("re", "im")
    return [row | {axis: min(max(row[axis], low[axis]), high[axis]) for axis in axes} for row in rows]


def smallest_token_eigenvalue(heads: Iterable[HeadFinding]) -> tuple[float, int] | None:
    """The smallest real μ ≠ 1 that dominates in one of `heads`, and which head; None where the mean always does."""
    found = [
        (one.token_eigenvalue.real, one.head)
        for one in heads
        if one.token_eigenvalue is not None
        and cmath.isfinite(one.token_eigenvalue)
        and abs(one.token_eigenvalue.imag) < 1e-6
        and -1 < one.token_eigenvalue.real < 1 - 1e-6
    ]
    return min(found, default=None)


def verdict_rows(explanation: Explanation, words: int | None) -> Rows:
    """A cell per layer and per head. Reasons stay out where all of them together exceed `words` letters."""
    told = words is None or sum(len(one.reason) for one in explanation.heads) <= words
    whole = [_cell(one, "whole layer", one.reason) for one in explanation.layers]
    heads = sorted(explanation.heads, key=lambda one: (one.head, one.layer))
    return whole + [_cell(one, f"head {one.head}", one.reason if told else "") for one in heads]


def _cell(one: LayerFinding | HeadFinding, row: str, reason: str) -> dict[str, Any]:
    return {
        "layer": one.layer,
        "row": row,
        "sign": LOOKS[one.verdict].sign,
        "verdict": verdict_label(one.verdict),
        "margin": spoken(one.margin),
        "reason": printable(reason) or "too many heads to tell here: see heads.csv",
    }


def verdict_label(verdict: str) -> str:
    """The verdict with its sign.

    >>> verdict_label("smoothing")
    '+ smoothing'
    """
    return f"{LOOKS[verdict].sign} {verdict}"


def prediction_rows(layers: Iterable[LayerFinding], tier: str) -> Rows:
    """Foretold beside measured change of logit t_sim, where both are there."""
    rows = []
    for one in layers:
        predicted, measured = number(one.predicted.get(tier)), number(one.logit_change)
        if predicted is not None and measured is not None:
            right = (predicted > 0, predicted < 0) == (measured > 0, measured < 0)
            says = "direction foretold" if right else "direction missed"
            rows.append({"layer": one.layer, "predicted": predicted, "measured": measured, "direction": says})
    return rows


def breakdown_rows(layers: Iterable[LayerFinding]) -> Rows:
    """The four shares of every layer that has them."""
    return [
        {"layer": one.layer, "cause": label, "change": number(getattr(one.breakdown, cause)), "order": order}
        for one in layers
        if one.breakdown is not None
        for order, (cause, label) in enumerate(CAUSES.items())
        if number(getattr(one.breakdown, cause)) is not None
    ]


def measured_rows(layers: Iterable[LayerFinding]) -> Rows:
    """The measured change of t_sim by layer."""
    return [{"layer": one.layer, "change": value} for one in layers if (value := number(one.measured)) is not None]


def head_rows(heads: Iterable[HeadFinding], quantity: str) -> Rows:
    """One quantity of attention for every head that has it."""
    return [
        {"layer": one.layer, "head": one.head, "value": rounded(value, 3)}
        for one in heads
        if (value := number(getattr(one, quantity))) is not None
    ]


def mean_rows(rows: Rows, label: str) -> Rows:
    """Means over the heads of each layer.

    >>> mean_rows([{"layer": 1, "value": 0.2}, {"layer": 1, "value": 0.4}], "mean")
    [{'layer': 1, 'value': 0.3, 'line': 'mean'}]
    """
    by_layer: dict[int, list[float]] = {}
    for row in rows:
        by_layer.setdefault(row["layer"], []).append(row["value"])
    return [{"layer": layer, "value": rounded(fmean(by_layer[layer])), "line": label} for layer in sorted(by_layer)]


def gain_rows(layers: Iterable[LayerFinding], prefix: str = "") -> Rows:
    """The parts of the Jacobians; with the prefix ``collapsed_`` those at the point where all tokens are equal."""
    return [
        {"layer": one.layer, "part": label, "gain": rounded(value)}
        for one in layers
        if one.gains is not None
        for part, label in PARTS.items()
        if (value := number(getattr(one.gains, prefix + part, None))) is not None
    ]


def escalation_rows(layers: Iterable[LayerFinding]) -> Rows:
    """P2's escalation rate, measured, and its lower bound."""
    lines = {"escalation": "measured", "escalation_bound": "lower bound for random weights"}
    return [
        {"layer": one.layer, "line": label, "value": rounded(value)}
        for name, label in lines.items()
        for one in layers
        if (value := number(getattr(one, name))) is not None
    ]
