"""The finding in one sentence."""

from __future__ import annotations

import math

from unsmooth.scanning.gathering import MAPS
from unsmooth.scanning.result import Change, MetricCard, Row, Scan


def one_sentence(scan: Scan) -> str:
    """Say whether tokens grow more or less alike, from what to what, against chance and random weights.

    It is told of the scan's first metric, at the residual site where that was measured.
    """
    metric = next(iter(scan.metrics))
    change = scan.changes.get(metric) or Change(math.nan, math.nan, math.nan, 0)
    sites = [row.site for row in scan.rows if row.metric == metric] or [row.site for row in scan.rows]
    site = "residual" if "residual" in sites else next(iter(sites), "")
    curve = [row for row in scan.rows if row.metric == metric and row.site == site and row.sequences]
    if len(curve) < 2:
        return f"Too few layers with finite numbers to say whether tokens of {scan.name} grow more or less alike."
    first, last = curve[0], curve[-1]
    card, where = scan.metrics[metric], "" if site in ("residual", MAPS) else f" at the {site} site"
    parts = [
        f"{_direction(card, first, last, change)}: {metric}{where} goes from {_number(first.mean)} "
        f"at layer {first.layer} to {_number(last.mean)} at layer {last.layer}"
        f"{_interval(card, first, last, change)}{_turning_point(curve)}"
    ]
    against = []
    chance = scan.metrics[metric].chance
    if chance is not None:
        against.append(f"{_number(chance)} by chance")
    if scan.baseline is not None:
        random = [row for row in scan.baseline.rows if row.metric == metric and row.site == site and row.sequences]
        if random:
            against.append(
                f"{_number(random[0].mean)} to {_number(random[-1].mean)} in the same architecture with random weights"
            )
    if against:
        parts.append(f"against {' and '.join(against)}")
    return ", ".join(parts) + "."


def _direction(card: MetricCard, first: Row, last: Row, change: Change) -> str:
    if card.rises_when_alike is None:
        return f"{card.name} changes with depth"
    if _unclear(first, last, change):
        return "Tokens grow neither clearly more nor clearly less alike with depth"
    if last.mean == first.mean:
        return "Tokens stay exactly as alike with depth"
    alike = (last.mean > first.mean) == card.rises_when_alike
    return f"Tokens grow {'more' if alike else 'less'} alike with depth"


def _unclear(first: Row, last: Row, change: Change) -> bool:
    """Whether there may be no change; where sequences were not paired, whether the intervals of both ends overlap."""
    if change.sequences >= 2:
        return change.ci_low <= 0.0 <= change.ci_high
    return first.ci_low <= last.ci_high and last.ci_low <= first.ci_high


def _interval(card: MetricCard, first: Row, last: Row, change: Change) -> str:
    if max(first.sequences, last.sequences) < 2:
        return f" (one {card.unit}, so without an interval)"
    if change.sequences < 2:  # sequences are paired between residual layers, where both have a value
        return f" (change {_signed(last.mean - first.mean)}, not paired by {card.unit}, so without an interval)"
    if math.isnan(change.ci_low):
        return f" (change {_signed(change.mean)})"
    return f" (change {_signed(change.mean)}, 95 % interval {_signed(change.ci_low)} to {_signed(change.ci_high)})"


def _turning_point(curve: list[Row]) -> str:
    """Name the extreme in between where the curve overshoots its ends by more than their distance's tenth."""
    inner = curve[1:-1]
    if not inner:
        return ""
    low, high = sorted((curve[0].mean, curve[-1].mean))
    margin = 0.1 * max(high - low, 0.02)
    top, bottom = max(inner, key=lambda row: row.mean), min(inner, key=lambda row: row.mean)
    if top.mean > high + margin:
        return f" with a peak of {_number(top.mean)} at layer {top.layer}"
    if bottom.mean < low - margin:
        return f" with a dip to {_number(bottom.mean)} at layer {bottom.layer}"
    return ""


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.4g}"


def _signed(value: float) -> str:
    return f"{value:+.2f}" if abs(value) < 100 else f"{value:+.4g}"
