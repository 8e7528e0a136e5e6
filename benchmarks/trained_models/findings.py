"""What the scans have in common, as claims that are counted and not remembered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.trained_models.measure import CURVES, Measured, massive_positions
from unsmooth.scanning import Confound, Row, Scan

NOTABLE_SHIFT = 0.05
"""A confound is spoken of where it moves the mean cosine of a layer by at least this much."""


def common_ground(all_found: Sequence[Measured]) -> list[str]:
    """Claims that hold for some or all of the scans, each with who they hold for."""
    scans = [found.scan for found in all_found]
    lines = [
        "Tokens grow more alike from the first layer to the last (the interval of the change in mean cosine lies "
        f"above 0) in {_who(scans, lambda s: s.changes['mean_cosine'].ci_low > 0)}; less alike in "
        f"{_who(scans, lambda s: s.changes['mean_cosine'].ci_high < 0)}.",
        "At the last layer they are less alike than in the same architecture with random weights (intervals apart) in "
        f"{_who(scans, lambda s: s.curve()[-1].ci_high < random_of(s).curve()[-1].ci_low)}; more alike in "
        f"{_who(scans, lambda s: s.curve()[-1].ci_low > random_of(s).curve()[-1].ci_high)}.",
        f"The mean cosine peaks before the last layer in {_who(scans, lambda s: peak(s).layer != s.layers[-1])}.",
        _extremes(scans),
        "Massive tokens and outlier dimensions together move the mean cosine of some layer by at least "
        f"{NOTABLE_SHIFT} in {_who(scans, lambda s: any(map(matters, s.confounds)))}; {_largest_shift(scans)}.",
    ]
    lines += [_peeled_line(found.scan, found.peeled) for found in all_found if found.peeled is not None]
    lines += [_shared_line(scan) for scan in scans if fact(scan, "blocks") < scan.layers[-1]]
    return lines


def matters(item: Confound) -> bool:
    """Whether leaving massive tokens and outlier dimensions out changes what one would say of this layer."""
    return abs(item.mean_cosine - item.without_both) >= NOTABLE_SHIFT


def most_moved(scan: Scan) -> Confound:
    """The layer whose mean cosine owes most to what stands out."""
    return max(scan.confounds, key=lambda item: abs(item.mean_cosine - item.without_both))


def _who(scans: Sequence[Scan], holds: Callable[[Scan], bool]) -> str:
    names = [scan.name for scan in scans if holds(scan)]
    if len(names) == len(scans):
        return f"all {len(scans)}"
    return f"{len(names)} of {len(scans)} ({', '.join(names)})" if names else "none"


def _extremes(scans: Sequence[Scan]) -> str:
    most = max(scans, key=lambda scan: peak(scan).mean)
    shares = {scan.name: _rank_share(scan) for scan in scans}
    low, high = min(shares, key=lambda name: shares[name]), max(shares, key=lambda name: shares[name])
    return (
        f"The largest mean cosine of all layers is {peak(most).mean:.3f} ({most.name}, layer {peak(most).layer}); "
        f"tokens that are all the same have 1. At the last layer the effective rank is between {shares[low]:.0%} "
        f"({low}) and {shares[high]:.0%} ({high}) of that of independent tokens."
    )


def _rank_share(scan: Scan) -> float:
    chance = scan.metrics["effective_rank"].chance
    return scan.curve("effective_rank")[-1].mean / chance if chance else math.nan


def _largest_shift(scans: Sequence[Scan]) -> str:
    scan = max(scans, key=lambda s: abs(most_moved(s).mean_cosine - most_moved(s).without_both))
    worst = most_moved(scan)
    return (
        f"most in {scan.name} at layer {worst.layer}, from {worst.mean_cosine:.3f} to "
        f"{worst.without_massive_tokens:.3f} without the tokens, {worst.without_outlier_dimensions:.3f} without the "
        f"dimensions and {worst.without_both:.3f} without both"
    )


def _peeled_line(scan: Scan, peeled: Scan) -> str:
    row, other = most_peeled(scan, peeled)
    at = scan.layers.index(row.layer)
    cosines, ranks = ([one.curve(metric)[at].mean for one in (scan, peeled)] for metric in (CURVES[0], CURVES[2]))
    return (
        f"In {scan.name} a massive token stands at position {positions(scan)}. At layer {row.layer} t_sim, which "
        f"weighs tokens by their norm, is {row.mean:.3f} with it and {other.mean:.3f} without it, the effective rank "
        f"{ranks[0]:.1f} and {ranks[1]:.1f}; the mean cosine, which weighs all tokens alike, {cosines[0]:.3f} and "
        f"{cosines[1]:.3f}."
    )


def _shared_line(scan: Scan) -> str:
    blocks, calls = fact(scan, "blocks"), scan.layers[-1]
    rises = [row.layer for row in scan.curve("escalation_rate") if row.mean > 0]
    steps = [after.mean - before.mean for before, after in zip(scan.curve(), scan.curve()[1:], strict=False)]
    shared = "one block" if blocks == 1 else f"{blocks} blocks"
    return (
        f"{scan.name} runs {shared} {calls} times: the first call moves the mean cosine by {steps[0]:+.3f} and the "
        f"last by {steps[-1]:+.3f}; the escalation rate is above 0, which is to say that t_sim rises, at {len(rises)} "
        f"of {calls} calls."
    )


def fact(scan: Scan, name: str) -> Any:
    """What the manifest says of the model."""
    return scan.manifest["model"][name]


def random_of(scan: Scan) -> Scan:
    """The same architecture with random weights; every scan here is made with it."""
    assert scan.baseline is not None
    return scan.baseline


def peak(scan: Scan) -> Row:
    """The layer of the largest mean cosine."""
    return max(scan.curve(), key=lambda row: row.mean)


def most_peeled(scan: Scan, peeled: Scan) -> tuple[Row, Row]:
    """The layer at which leaving out the massive positions moves t_sim most, with and without them."""
    pairs = zip(scan.curve("token_similarity"), peeled.curve("token_similarity"), strict=True)
    return max(pairs, key=lambda pair: abs(pair[0].mean - pair[1].mean))


def positions(scan: Scan) -> str:
    """The positions that the second scan leaves out, in words."""
    return ", ".join(map(str, massive_positions(scan)))
