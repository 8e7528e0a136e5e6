"""From a claim's series to the rows of a chart: what is not a number becomes a gap, what has no ends has no band."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.report.series import PALETTE, number, printable

Rows = list[dict[str, Any]]
POINTS_OF_A_LINE = 400
MARKED = 30  # points of a line up to which each is marked
_LABELS = 300  # pixels that names below an axis may take together
_LETTER = 7
_RAMP = ("#3b5bdb", "#b8459c", "#f08c00")


@dataclass(frozen=True)
class Look:
    """How a series is drawn, and by what symbol the legend tells it."""

    name: str
    colour: str
    dashed: bool
    symbol: str = "stroke"


@dataclass(frozen=True)
class Axes:
    """What a pair of axes is told.

    Attributes:
        x: Title of the first.
        y: Title of the second.
        names: Along the first, where it has names instead of numbers.
        whole: The least and the largest along the first, where it holds whole numbers alone.
        log_x: Whether the first is logarithmic.
        log_y: Whether the second is.
        apart: Whether series stand beside one another at a name.
        within: Ends of the second, where they are given.
    """

    x: str
    y: str
    names: tuple[str, ...] = ()
    whole: tuple[int, int] | None = None
    log_x: bool = False
    log_y: bool = False
    apart: bool = False
    within: tuple[float, float] | None = None

    @property
    def lying(self) -> bool:
        """Whether names stand at the side, since they do not fit below."""
        return len(self.names) * max(map(len, self.names), default=0) * _LETTER > _LABELS


def looks_of(figure: Figure, panel: Panel) -> dict[tuple[str, bool], Look]:
    """Name and colour of every series of a panel by its name and whether it is predicted.

    A name has the same colour in all panels, unless there are more names than colours. What is predicted for something
    measured, as its name begins with that of the other, shares its colour. Steps of one thing have a ramp of colours.
    """
    if panel.ordered:
        return _ramped(panel.series)
    together = _looks([series for one in figure.panels for series in one.series])
    colours = {look.colour for look in together.values()}
    several = len({name for name, _ in together}) > len(PALETTE)
    found = _looks(panel.series) if several and len(colours) == len(PALETTE) else together
    return {key: found[key] for series in panel.series for key in [(series.name, series.mark == "dashed")]}


def _ramped(steps: Sequence[Series]) -> dict[tuple[str, bool], Look]:
    last = max(len(steps) - 1, 1)
    return {
        (series.name, series.mark == "dashed"): Look(
            printable(series.name), ramp_colour(place / last), series.mark == "dashed"
        )
        for place, series in enumerate(steps)
    }


def ramp_colour(share: float) -> str:
    """From blue over purple to orange, each told from the page in light and dark, and from the others by its lightness.

    >>> ramp_colour(0.0), ramp_colour(0.5), ramp_colour(1.0)
    ('#3b5bdb', '#b8459c', '#f08c00')
    """
    place = min(max(share, 0.0), 1.0) * (len(_RAMP) - 1)
    before = min(int(place), len(_RAMP) - 2)
    ends = [(int(_RAMP[before][at : at + 2], 16), int(_RAMP[before + 1][at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(low + (high - low) * (place - before)):02x}" for low, high in ends)


def _looks(every: Sequence[Series]) -> dict[tuple[str, bool], Look]:
    solid = list(dict.fromkeys(series.name for series in every if series.mark != "dashed"))
    dashed = list(dict.fromkeys(series.name for series in every if series.mark == "dashed"))
    partners = {name: _measured_for(name, solid) for name in dashed}
    known = list(partners.values())
    shared = {name: partner for name, partner in partners.items() if partner is not None and known.count(partner) == 1}
    own = dict.fromkeys(series.name for series in every if series.mark != "dashed" or series.name not in shared)
    colours = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(own)}
    looks = {(name, False): Look(printable(name), colours[name], False) for name in solid}
    for name in dashed:
        called = f"{name}, predicted" if name in solid else name
        looks[name, True] = Look(printable(called), colours[shared.get(name, name)], True)
    return looks


def _measured_for(name: str, solid: Sequence[str]) -> str | None:
    """The longest of the names that `name` begins with.

    >>> _measured_for("σ = 1.5, formula", ["σ = 1", "σ = 1.5"]), _measured_for("bound", ["σ = 1"])
    ('σ = 1.5', None)
    """
    found = [one for one in solid if re.match(rf"{re.escape(one)}(?![\w.])", name)]
    return max(found, key=len, default=None)


def axes_of(panel: Panel) -> Axes:
    """What the axes of a panel are told."""
    values = [value for series in panel.series for value in series.x if value is not None]
    named = any(isinstance(value, str) for value in values)
    whole = bool(values) and not named and all(float(value).is_integer() for value in values)
    return Axes(
        x=printable(panel.x),
        y=printable(panel.y),
        names=tuple(dict.fromkeys(printable(value) for value in values)) if named else (),
        whole=(int(min(map(float, values))), int(max(map(float, values)))) if whole else None,
        log_x=panel.log_x and not named,
        log_y=panel.log_y,
        apart=named and len(panel.series) > 1 and all(series.mark == "points" for series in panel.series),
        within=panel.within,
    )


def tables_of(panel: Panel, looks: Mapping[tuple[str, bool], Look]) -> dict[str, Rows]:
    """Rows by layer of the chart: `band`, `lines`, `bars`, `points`, `reference`; one without rows is left out."""
    axes = axes_of(panel)
    found: dict[str, Rows] = {"band": [], "reference": [], "lines": [], "bars": [], "points": []}
    for series in panel.series:
        rows = series_rows(series, looks[series.name, series.mark == "dashed"].name, axes)
        if axes.names or series.mark == "points":
            found["bars"] += [row for row in rows if row["low"] is not None]
        elif any(row["low"] is not None for row in rows):
            found["band"] += rows  # one without ends is a gap in it
        if series.mark != "points":
            found["lines"] += rows
        if series.mark == "points" or (series.mark == "line" and len(rows) <= MARKED):
            found["points"] += [row for row in rows if row["y"] is not None]
    if panel.reference is not None and (panel.reference > 0 or not panel.log_y):
        found["reference"] = [{"y": panel.reference}]
    return {name: rows for name, rows in found.items() if any(row["y"] is not None for row in rows)}


def series_rows(series: Series, name: str, axes: Axes) -> Rows:
    """A row per point; where an axis is logarithmic, what it cannot show is a gap, and a band ends at its lowest."""
    missing: list[float | None] = [None] * len(series.y)
    lows, highs = list(series.low or missing), list(series.high or missing)
    shown = [value for value in (*series.y, *highs) if _drawn(value, axes.log_y) is not None]
    floor = min((value for value in shown if value is not None), default=None)
    rows = []
    for x, y, low, high in _evenly(list(zip(series.x, series.y, lows, highs, strict=True))):
        bottom, top = number(low), _drawn(high, axes.log_y)
        if axes.log_y and bottom is not None and bottom <= 0:
            bottom = number(floor)
        whole = bottom is not None and top is not None
        place = printable(x) if axes.names else _drawn(x, axes.log_x)
        if place is not None:
            ends = {"low": bottom if whole else None, "high": top if whole else None}
            rows.append({"line": name, "x": place, "y": _drawn(y, axes.log_y), **ends})
    return rows


def _drawn(value: float | None, log: bool) -> float | None:
    found = number(value)
    return None if found is None or (log and found <= 0) else found


def _evenly(points: Sequence[Any], most: int = POINTS_OF_A_LINE) -> Sequence[Any]:
    if len(points) <= most:
        return points
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]
