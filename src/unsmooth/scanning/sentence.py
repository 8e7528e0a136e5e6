"""The finding in one sentence, and the direction that it tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from unsmooth.numbers import Precision
from unsmooth.scanning.gathering import MAPS
from unsmooth.scanning.result import Change, MetricCard, Row, Scan

LEAST_EFFECT = 0.02
"""The least change with depth that is called one.

For metrics that rise as tokens become alike, which are similarities of at most 1, it is a difference. The others
(distances, ranks, shares that fall towards 0) have a scale of their own: for them it is a share of the larger end.
"""
DIRECTION = (
    f"told where the 95 % interval of the change leaves out 0 and the change is at least {LEAST_EFFECT:g}, of the "
    "larger end for metrics that fall as tokens become alike; none from one sequence, none where activations were NaN "
    "or Inf, and none between two ends that are down to the rounding of activations"
)
CUT_NOTED = 0.1
"""The share of all tokens beyond which the sentence says that texts were cut."""

Direction = Literal["more", "less", "same", "open"]
_WORDS: dict[Direction | None, str] = {
    "more": "Tokens grow more alike with depth",
    "less": "Tokens grow less alike with depth",
    "same": "Tokens stay about as alike with depth",
    "open": "Tokens grow neither clearly more nor clearly less alike with depth",
}


def direction_of(card: MetricCard, first: Row, last: Row, change: Change) -> Direction | None:
    """Whether tokens grow more or less alike by one metric.

    Args:
        card: Says which way the metric moves as tokens become alike.
        first: The first layer.
        last: The last layer.
        change: From the first to the last one, paired; where it has no interval, those of both ends are compared.

    Returns:
        "more" or "less" for a change that is clear and at least `LEAST_EFFECT`; "same" where the whole interval of
        the change is within that; else "open". None where nothing can be told: from one sequence, without
        intervals, where both ends are down to rounding, or where it is not settled which way the metric moves.
    """
    if card.rises_when_alike is None or _are_rounding(card, first, last):
        return None
    scale = max(abs(first.mean), abs(last.mean), 1.0 if card.rises_when_alike else 0.0)
    least = LEAST_EFFECT * scale
    if change.sequences >= 2 and math.isfinite(change.ci_low):
        by, clear = change.mean, not change.ci_low <= 0.0 <= change.ci_high
        small = max(abs(change.ci_low), abs(change.ci_high)) < least
    elif change.sequences >= 2 or not all(math.isfinite(row.ci_low) for row in (first, last)):
        return None
    else:
        by, small = last.mean - first.mean, False
        clear = first.ci_low > last.ci_high or last.ci_low > first.ci_high
    if clear and abs(by) >= least:
        return "more" if (by > 0) == card.rises_when_alike else "less"
    return "same" if small else "open"


def one_sentence(scan: Scan) -> str:
    """Say whether tokens grow more or less alike, from what to what, against chance and random weights.

    It is told of the scan's first metric, at the residual site where that was measured. Activations that were NaN or
    Inf are told first; then, and of one sequence, there are figures without a direction.
    """
    metric = next(iter(scan.metrics))
    curve, site = _curve(scan, metric)
    broken = "" if scan.healthy else "Activations were NaN or Inf, so no direction is told: "
    if len(curve) < 2:
        few = "too few layers with finite numbers to say whether tokens"
        text = f"{broken or 'There are '}{few} of {scan.name} grow more or less alike"
        return f"{text}{_cut(scan.manifest)}."
    first, last, card = curve[0], curve[-1], scan.metrics[metric]
    change = scan.changes.get(metric) if site == "residual" else None
    change = change or Change(math.nan, math.nan, math.nan, 0)
    random = [] if scan.baseline is None else _curve(scan.baseline, metric, site)[0]
    say = Precision.of([row.mean for row in (*curve, *random)], decimals=2)
    where = "" if site in ("residual", MAPS) else f" at the {site} site"
    text = (
        f"{metric}{where} goes from {say(first.mean)} at layer {first.layer} to {say(last.mean)} at layer "
        f"{last.layer}{_interval(card, first, last, change, say)}{_turning_point(curve, say)}"
    )
    against = [] if card.chance is None else [f"{say(card.chance)} by chance"]
    if random:
        ends = f"{say(random[0].mean)} to {say(random[-1].mean)}"
        against.append(f"{ends} in the same architecture with random weights")
    text += f", against {' and '.join(against)}" if against else ""
    return (broken or _head(card, first, last, change)) + text + _cut(scan.manifest) + "."


def _curve(scan: Scan, metric: str, site: str | None = None) -> tuple[list[Row], str]:
    """The rows of a metric that have a number, at one site, and which site that is."""
    sites = [row.site for row in scan.rows if row.metric == metric] or [row.site for row in scan.rows]
    site = site or ("residual" if "residual" in sites else next(iter(sites), ""))
    return [row for row in scan.rows if row.metric == metric and row.site == site and row.sequences], site


def _are_rounding(card: MetricCard, first: Row, last: Row) -> bool:
    return card.is_rounding(first.mean) and card.is_rounding(last.mean)


def _head(card: MetricCard, first: Row, last: Row, change: Change) -> str:
    found = direction_of(card, first, last, change)
    if max(first.sequences, last.sequences) < 2:
        return f"From one {card.unit}, which tells no direction: "
    if _are_rounding(card, first, last):
        return "Down to the rounding of activations, which tells no direction: "
    return f"{_WORDS[found]}: " if found else ""


def _interval(card: MetricCard, first: Row, last: Row, change: Change, say: Precision) -> str:
    if max(first.sequences, last.sequences) < 2:
        return ""
    if change.sequences < 2:  # sequences are paired between residual layers, where both have a value
        by = say(last.mean - first.mean, signed=True)
        return f" (change {by}, not paired by {card.unit}, so without an interval)"
    by, low, high = (say(value, signed=True) for value in (change.mean, change.ci_low, change.ci_high))
    return f" (change {by})" if math.isnan(change.ci_low) else f" (change {by}, 95 % interval {low} to {high})"


def _turning_point(curve: Sequence[Row], say: Precision) -> str:
    """Name the extreme in between where the curve overshoots its ends by more than their distance's tenth."""
    inner = curve[1:-1]
    if not inner:
        return ""
    low, high = sorted((curve[0].mean, curve[-1].mean))
    margin = 0.1 * max(high - low, LEAST_EFFECT)
    top, bottom = max(inner, key=lambda row: row.mean), min(inner, key=lambda row: row.mean)
    if top.mean > high + margin:
        return f" with a peak of {say(top.mean)} at layer {top.layer}"
    if bottom.mean < low - margin:
        return f" with a dip to {say(bottom.mean)} at layer {bottom.layer}"
    return ""


def _cut(manifest: Any) -> str:
    """That texts were cut, where that took a good part of them."""
    data = manifest.get("data") or {}
    cut = data.get("cut") or {"tokens": 0, "of_tokens": 0}
    if cut["tokens"] <= CUT_NOTED * cut["of_tokens"]:
        return ""
    share = math.floor(100 * cut["tokens"] / cut["of_tokens"])
    return f"; texts were cut at {data['max_length']} tokens, which left out {share} % of all tokens"
