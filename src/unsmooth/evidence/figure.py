"""A claim's picture as plain data: the report draws it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from unsmooth.evidence.interval import Interval

Mark = Literal["line", "points", "dashed"]


@dataclass(frozen=True)
class Series:
    """One line, or one set of points.

    Args:
        name: For the legend.
        x: Numbers, or names for a categorical axis.
        y: As many numbers.
        low: Lower ends of intervals, where there are any.
        high: Upper ends.
        mark: "line", "points", or "dashed" for what is predicted rather than measured.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    mark: Mark = "line"


def with_intervals(
    name: str, x: Sequence[float] | Sequence[str], intervals: Iterable[Interval], mark: Mark = "line"
) -> Series:
    """Values with their intervals; where one has no ends, as that of one seed, values alone.

    >>> with_intervals("plain", [0], [Interval(1.0, 0.5, 1.5, 3)]).low
    [0.5]
    >>> with_intervals("plain", [0], [Interval(1.0, -math.inf, math.inf, 1)]).low is None
    True
    """
    found = list(intervals)
    low, high = [one.low for one in found], [one.high for one in found]
    known = all(map(math.isfinite, [*low, *high]))
    return Series(name, x, [one.value for one in found], low if known else None, high if known else None, mark)


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
        title: What it shows.
        x: What is along.
        y: What is up.
        series: What is drawn.
        log_x: Whether the first axis is logarithmic.
        log_y: Whether the second is.
        reference: A value of y to draw a thin line at.
        ordered: Whether the series are steps of one thing, such as layers: they are then drawn in a ramp of colours.
        within: Ends of the second axis; None for those of what is drawn.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    reference: float | None = None
    ordered: bool = False
    within: tuple[float, float] | None = None


def on_one_scale(panels: Sequence[Panel]) -> list[Panel]:
    """Panels that are to be compared, with second axes that have the same ends.

    >>> low, high = Panel("a", "x", "y", [Series("s", [0], [1.0])]), Panel("b", "x", "y", [Series("s", [0], [3.0])])
    >>> [panel.within for panel in on_one_scale([low, high])]
    [(1.0, 3.0), (1.0, 3.0)]
    """
    every = [one for panel in panels for one in panel.series]
    values = [value for one in every for part in (one.y, one.low or (), one.high or ()) for value in part]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return [replace(panel, within=(min(finite), max(finite)) if finite else None) for panel in panels]


@dataclass(frozen=True)
class Figure:
    """Panels side by side.

    Args:
        caption: What to see in them, in a sentence.
        panels: At least one.
    """

    caption: str
    panels: Sequence[Panel] = field(default_factory=tuple)
