"""A claim's figure as a chart for notebooks and documentation, and panel by panel as SVG for the page."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unsmooth.errors import expected
from unsmooth.evidence.figure import Figure, Panel
from unsmooth.evidence.ledger import Entry
from unsmooth.report.charts import FAINT, INK, chart_config, chart_svg
from unsmooth.report.evidence.rows import Axes, Look, Rows, axes_of, looks_of, tables_of
from unsmooth.report.series import printable
from unsmooth.report.shell import import_extra

if TYPE_CHECKING:
    import altair


_COLUMNS = 3
_PAGE_WIDTH = 390
# What text takes is worked out with one font and drawn with the reader's, which may be wider.
_LETTERS, _SPARE = 36, {"left": 28, "right": 28, "top": 5, "bottom": 5}


def figure(entry: Entry) -> altair.TopLevelMixin:
    """The picture of a claim, all panels side by side: show it in a notebook, or ``.save("claim.svg")``.

    Args:
        entry: A line of the ledger whose claim was measured.
    """
    if entry.record is None:
        raise expected("a claim that was measured", entry.claim.id, f"`unsmooth evidence run {entry.claim.id}` first")
    drawn = entry.claim.figure(entry.record.measured)
    return panels_chart(drawn, entry.claim.reading, of=entry.claim.id)


def panels_chart(drawn: Figure, title: str, of: str) -> altair.TopLevelMixin:
    """All panels of a figure side by side, under a title and its caption.

    Raises:
        UnsmoothError: No panel has numbers; `of` is what they would be of.
    """
    alt = import_extra("altair")
    charts = [chart for panel in drawn.panels if (chart := panel_chart(drawn, panel)) is not None]
    if not charts:
        raise expected(f"numbers to draw for {of}", "none", "measuring it again")
    # Legends of panels tell apart different series: each keeps its own.
    chart = alt.concat(*charts, columns=_COLUMNS).resolve_scale(color="independent", strokeDash="independent")
    letters = _LETTERS * min(len(charts), _COLUMNS)
    head = alt.TitleParams(
        textwrap.wrap(printable(title), letters),
        subtitle=textwrap.wrap(printable(drawn.caption), round(letters * 1.2)),
    )
    config = {**_config(INK, FAINT, "white"), "padding": _SPARE}
    made: altair.TopLevelMixin = chart.properties(title=head).configure(**config)
    return made


def panel_svg(drawn: Figure, panel: Panel) -> str | None:
    """One panel as SVG that takes the colour of the text around it; None where it has no numbers."""
    chart = panel_chart(drawn, panel)
    if chart is None:
        return None
    # Not the page's font: what the text takes is worked out here, and differs less between machines with this one.
    config = _config("currentColor", "currentColor", "transparent")
    config["axis"].update(gridOpacity=0.12, domainOpacity=0.5, tickOpacity=0.5)
    config["rule"]["opacity"] = 0.65
    # Over the plot alone a long title would reach beyond the picture, and a narrow screen would cut it.
    config["title"]["frame"] = "bounds"
    # All pictures of the page are equally wide, whatever their axes take of it.
    fitted = import_extra("altair").AutoSizeParams(type="fit-x", contains="padding")
    return chart_svg(chart.properties(width=_PAGE_WIDTH, autosize=fitted).configure(**config))


def panel_chart(drawn: Figure, panel: Panel) -> altair.LayerChart | None:
    """One panel; None where it has no numbers."""
    looks = looks_of(drawn, panel)
    tables = tables_of(panel, looks)
    if not set(tables) - {"reference"}:
        return None
    alt = import_extra("altair")
    title = alt.TitleParams(textwrap.wrap(printable(panel.title), 48) or "", fontSize=13)
    return draw_panel(axes_of(panel), list(looks.values()), tables).properties(title=title)


def _config(*colours: str) -> dict[str, Any]:
    config = chart_config(*colours)
    config["legend"] |= {"symbolSize": 240}
    return config


WIDTH, HEIGHT = 320, 240
_ROW = 26  # pixels of a name at the side
_TICKS = 12  # whole numbers up to which each has one
_TITLE_LETTERS = {"x": 52, "y": 38}  # of an axis' title before it goes to the next line


def draw_panel(axes: Axes, looks: Sequence[Look], tables: Mapping[str, Rows]) -> altair.LayerChart:
    """Bands, a line at the reference, lines, error bars and points, bottom to top, as far as there are rows."""
    alt = import_extra("altair")
    if set(tables) <= {"points", "reference"}:
        looks = [replace(look, symbol="circle") for look in looks]
    layers = []
    for name, draw in _LAYERS.items():
        if name in tables:
            chart = alt.Chart(alt.Data(values=tables[name]))
            layers.append(draw(chart, axes, looks).properties(name=name))
    height = max(80, _ROW * len(axes.names) * (len(looks) if axes.apart else 1)) if axes.lying else HEIGHT
    return alt.layer(*layers).properties(width=WIDTH, height=height)


def _band(chart: Any, axes: Axes, looks: Sequence[Look]) -> Any:
    return chart.mark_area(fillOpacity=0.16, aria=False).encode(
        x=_along(axes), y=_up(axes, "low"), y2="high:Q", color=_colour(looks)
    )


def _reference(chart: Any, axes: Axes, looks: Sequence[Look]) -> Any:
    where = {"x" if axes.lying else "y": _up(axes, "y")}
    return chart.mark_rule(strokeDash=[2, 3], strokeWidth=1.2, aria=False).encode(**where)


def _lines(chart: Any, axes: Axes, looks: Sequence[Look]) -> Any:
    dash = {"strokeDash": _dash(looks)} if any(look.dashed for look in looks) else {}
    # In the order of the data: a curve may go back along its axis.
    line = chart.mark_line(strokeWidth=2, strokeJoin="round", order=None, aria=False)
    return line.encode(**_places(axes), color=_colour(looks), **dash)


def _bars(chart: Any, axes: Axes, looks: Sequence[Look]) -> Any:
    along, up = ("y", "x") if axes.lying else ("x", "y")
    ends = {along: _along(axes), up: _up(axes, "low"), f"{up}2": "high:Q"}
    return chart.mark_rule(strokeWidth=1.5, aria=False).encode(**ends, **_offset(axes, looks), color=_colour(looks))


def _points(chart: Any, axes: Axes, looks: Sequence[Look]) -> Any:
    alt = import_extra("altair")
    tooltip = [alt.Tooltip("line:N", title="series"), alt.Tooltip(f"x:{'N' if axes.names else 'Q'}", title=axes.x)]
    numbers = {"y": axes.y, "low": "from", "high": "to"}
    tooltip += [alt.Tooltip(f"{name}:Q", title=title, format=".4~g") for name, title in numbers.items()]
    points = chart.mark_circle(size=46, opacity=1, aria=False)
    return points.encode(**_places(axes), **_offset(axes, looks), color=_colour(looks), tooltip=tooltip)


_LAYERS = {"band": _band, "reference": _reference, "lines": _lines, "bars": _bars, "points": _points}


_NUMBERS: dict[str, Any] = {"tickCount": 6, "labelOverlap": True, "labelSeparation": 4}
"""Labels of an axis; two that touch would be read as one number."""


def _places(axes: Axes) -> dict[str, Any]:
    return {"y": _along(axes), "x": _up(axes, "y")} if axes.lying else {"x": _along(axes), "y": _up(axes, "y")}


def _along(axes: Axes) -> Any:
    """What the first axis stands for; at the side where its names do not fit below."""
    alt = import_extra("altair")
    channel = alt.Y if axes.lying else alt.X
    if axes.names:
        title = None if axes.lying else _title(axes.x, "x")
        labels = {"labelAngle": 0, "labelLimit": 190, "grid": axes.apart and axes.lying}
        return channel("x:N", title=title, sort=list(axes.names)).axis(**labels)
    scale = {"type": "log", "nice": False} if axes.log_x else {"zero": False, "nice": False}
    axis: dict[str, Any] = _NUMBERS | _logarithmic(axes.log_x)
    if axes.whole is not None and not axes.log_x:
        low, high = axes.whole
        each = list(range(low, high + 1)) if high - low <= _TICKS else None
        axis |= {"format": ",d"} | ({"tickMinStep": 1} if each is None else {"values": each})
    return channel("x:Q", title=_title(axes.x, "x")).scale(**scale, padding=8).axis(**axis)


def _up(axes: Axes, field: str) -> Any:
    alt = import_extra("altair")
    channel = alt.X if axes.lying else alt.Y
    scale: dict[str, Any] = {"type": "log", "nice": False} if axes.log_y else {"zero": False}
    if axes.within is not None:
        scale |= {"domain": list(axes.within)}
    axis = _NUMBERS | {"grid": True} | _logarithmic(axes.log_y)
    title = _title(axes.y, "x" if axes.lying else "y")
    return channel(f"{field}:Q", title=title).scale(**scale, padding=6).axis(**axis)


def _logarithmic(log: bool) -> dict[str, Any]:
    """Plain numbers; other axes choose how many digits tell their ticks apart."""
    return {"format": "~g"} if log else {}


def _offset(axes: Axes, looks: Sequence[Look]) -> dict[str, Any]:
    if not axes.apart:
        return {}
    alt = import_extra("altair")
    order = [look.name for look in looks]
    return (
        {"yOffset": alt.YOffset("line:N", sort=order)} if axes.lying else {"xOffset": alt.XOffset("line:N", sort=order)}
    )


def _colour(looks: Sequence[Look]) -> Any:
    alt = import_extra("altair")
    domain, colours = [look.name for look in looks], [look.colour for look in looks]
    return alt.Color("line:N", legend=_legend(looks)).scale(domain=domain, range=colours)


def _dash(looks: Sequence[Look]) -> Any:
    alt = import_extra("altair")
    dashes = [[5, 4] if look.dashed else [1, 0] for look in looks]
    return alt.StrokeDash("line:N", legend=_legend(looks)).scale(domain=[look.name for look in looks], range=dashes)


def _legend(looks: Sequence[Look]) -> Any:
    """The same for colours and dashes, which Vega-Lite then draws as one; none for a series that is alone."""
    if len(looks) == 1:
        return None
    longest = max(len(look.name) for look in looks)
    columns = max(1, min(3, len(looks), (WIDTH + 50) // (longest * 7 + 44)))
    alt = import_extra("altair")
    size = 60 if looks[0].symbol == "circle" else 240
    return alt.Legend(
        title=None, orient="bottom", columns=columns, labelLimit=WIDTH, symbolType=looks[0].symbol, symbolSize=size
    )


def _title(text: str, axis: str) -> list[str]:
    return textwrap.wrap(text, _TITLE_LETTERS[axis]) or [""]
