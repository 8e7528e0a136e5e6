"""The pictures of a training as Vega-Lite charts, on any kind of Altair data.

Every function takes tables by name and draws only the layers whose table is there: Vega warns about a layer whose
field has no number at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unsmooth.report.series import PALETTE
from unsmooth.report.shell import import_extra

if TYPE_CHECKING:
    import altair

Tables = Mapping[str, Any]
Looks = tuple[tuple[str, str], ...]
"""Names of lines with their colours; a tuple, since charts are kept by what they were told."""

KINDS = {"training": [1, 0], "evaluation": [5, 3]}
MOMENTS = {"start": [2, 3], "middle": [6, 4], "end": [1, 0]}
# One hue for what has a size, two for what has a sign: orange and blue as of layers that smooth and that sharpen.
RAMPS = {
    "light": {
        "heatmap": ["#f0f5fa", "#c9ddef", "#8dbbdc", "#4a92c6", "#1d68a5", "#0b3c6f"],
        "diverging": ["#b34700", "#e88f4f", "#f7d3b8", "#f4f4f4", "#bfd9ec", "#5ba3d0", "#005d94"],
    },
    "dark": {
        "heatmap": ["#1b2530", "#1f3f5c", "#255f8d", "#3a86bd", "#7fb6de", "#d9ecfa"],
        "diverging": ["#ff9a4d", "#c2692a", "#6b4127", "#2a2d31", "#234a66", "#2f7fb5", "#79c3f2"],
    },
}


def draw_curves(title: str, time: str, looks: Looks, legend: bool, tables: Tables) -> altair.LayerChart:
    """Quantities over the training: `band`, `steady` lines of many points, `sparse` lines with their points marked.

    Both kinds of line in one picture are told apart by dashes as well.
    """
    alt = import_extra("altair")
    y = alt.Y("mean:Q", title=title).scale(zero=False, padding=4)
    base = {"x": _time_axis(time), "color": _colour(looks, legend)}
    pick = alt.selection_point(name="picked", fields=["line"], bind="legend", toggle="true")
    picked = legend and len(looks) > 1
    shown = {full: _shown(pick if picked else None, full) for full in (0.16, 1.0)}
    dash = {"strokeDash": _dash("kind", KINDS)} if {"steady", "sparse"} <= set(tables) else {}
    layers = {}
    if "band" in tables:
        area = alt.Chart(tables["band"]).mark_area(aria=False)
        # A band for each kind: training and evaluation have moments of their own.
        band = {"y": _band_axis(title), "y2": "high:Q", "detail": "kind:N"}
        layers["band"] = area.encode(**base, **band, fillOpacity=shown[0.16])
    if "steady" in tables:
        line = alt.Chart(tables["steady"]).mark_line(strokeWidth=1.5, strokeJoin="round")
        layers["steady"] = line.encode(**base, **dash, y=y, opacity=shown[1.0])
    if "sparse" in tables:
        chart = alt.Chart(tables["sparse"])
        layers["sparse"] = chart.mark_line(strokeWidth=2).encode(**base, **dash, y=y, opacity=shown[1.0])
        points = chart.mark_circle(size=34, aria=False)
        layers["points"] = points.encode(**base, y=y, opacity=shown[1.0], tooltip=_said(title, "line", "step", "epoch"))
    top = "sparse" if "sparse" in layers else "steady"
    layers[top] = layers[top].add_params(pick) if picked else layers[top]
    return _layered(layers)


def draw_heat(
    title: str, unit: str, domain: tuple[float, float], ramp: str, several: bool, tables: Tables
) -> altair.LayerChart:
    """Layers over measurements: `cells`, the first layer at the bottom.

    Args:
        title: What the colour stands for.
        unit: What the labels of measurements count.
        domain: Where the colours begin and end.
        ramp: One of `RAMPS`: "heatmap" or "diverging".
        several: Whether cells are means over seeds, with the smallest and the largest.
        tables: Holds `cells`.
    """
    alt = import_extra("altair")
    legend = alt.Legend(title=title, orient="top", direction="horizontal", gradientLength=220, gradientThickness=10)
    tooltip = _said(title, "layer", "step", name="value")
    if several:
        tooltip += [alt.Tooltip("low:Q", title="smallest"), alt.Tooltip("high:Q", title="largest")]
    cells = alt.Chart(tables["cells"]).mark_rect(aria=False)
    return _layered(
        {
            "cells": cells.encode(
                x=alt.X("time:O", title=f"{unit} of measurement", sort=None).axis(
                    labelAngle=0, labelOverlap=True, ticks=False, domain=False
                ),
                y=alt.Y("layer:O", title="layer", sort="descending").axis(labelOverlap=True, ticks=False, domain=False),
                color=alt.Color("value:Q", legend=legend).scale(
                    domain=list(domain), range=ramp, clamp=True, interpolate="rgb"
                ),
                tooltip=tooltip,
            )
        }
    )


def draw_moments(title: str, looks: Looks, tables: Tables) -> altair.LayerChart:
    """Layer curves at the start, in the middle and at the end: `curves`, and the `band` over seeds of the end."""
    alt = import_extra("altair")
    x = alt.X("layer:Q", title="layer (0 = input of the first block)").axis(tickMinStep=1, format="d")
    x = x.scale(nice=False, zero=False, padding=10)
    y = alt.Y("value:Q", title=title).scale(zero=False, padding=4)
    base = {"x": x, "y": y, "color": _colour(looks)}
    # A number as it is: Vega-Lite advises against opacities of names, which have no order.
    faint = alt.Opacity("shade:Q", legend=None, scale=None)
    curves = alt.Chart(tables["curves"])
    layers = {}
    if "band" in tables:
        area = alt.Chart(tables["band"]).mark_area(aria=False, fillOpacity=0.16)
        layers["band"] = area.encode(x=x, y=_band_axis(title), y2="high:Q", color=_colour(looks))
    layers["curves"] = curves.mark_line(strokeWidth=2).encode(
        **base, opacity=faint, strokeDash=_dash("moment", MOMENTS)
    )
    points = curves.mark_circle(size=34, aria=False)
    tooltip = _said(title, "line", "moment", "step", "layer", name="value")
    layers["points"] = points.encode(**base, opacity=faint, tooltip=tooltip)
    return _layered(layers)


def draw_quantiles(title: str, time: str, domain: tuple[float, float], tables: Tables) -> altair.LayerChart:
    """A distribution over the training: nested bands of `quantiles` with the median, and a line at `zero`.

    `domain` is that of every layer and run, so that pictures can be compared.
    """
    alt = import_extra("altair")
    chart = alt.Chart(tables["quantiles"])
    x = _time_axis(time)
    layers = {"zero": alt.Chart(tables["zero"]).mark_rule().encode(y="zero:Q")}
    for low, high, share in (("lowest", "highest", 0.13), ("q05", "q95", 0.2), ("q25", "q75", 0.32)):
        y = alt.Y(f"{low}:Q", title=title).scale(domain=list(domain), nice=True)
        layers[low] = chart.mark_area(aria=False, color=PALETTE[0], fillOpacity=share).encode(x=x, y=y, y2=f"{high}:Q")
    layers["median"] = chart.mark_line(strokeWidth=2, color=PALETTE[0]).encode(x=x, y="q50:Q")
    points = chart.mark_circle(size=34, color=PALETTE[0], aria=False)
    names = ("lowest", "q05", "q25", "q50", "q75", "q95", "highest")
    tooltip = [*_said("", "step", "epoch"), *(alt.Tooltip(f"{name}:Q", format=".4~g") for name in names)]
    layers["points"] = points.encode(x=x, y="q50:Q", tooltip=tooltip)
    return _layered(layers)


def _time_axis(time: str) -> Any:
    alt = import_extra("altair")
    axis = alt.X(f"{time}:Q", title=time).axis(format="~s", tickCount=8)
    return axis.scale(nice=False, padding=4)


def _band_axis(title: str) -> Any:
    alt = import_extra("altair")
    return alt.Y("low:Q", title=title).scale(zero=False, padding=4)


def _said(title: str, *fields: str, name: str = "mean") -> list[Any]:
    """Tooltips of what a mark stands for, and of its number."""
    alt = import_extra("altair")
    words = [alt.Tooltip(f"{one}:{'N' if one in ('line', 'moment') else 'Q'}", title=one) for one in fields]
    return words + ([alt.Tooltip(f"{name}:Q", title=title, format=".4~g")] if title else [])


def _shown(pick: Any, full: float) -> Any:
    """An opacity: of lines that are not picked in the legend next to nothing."""
    alt = import_extra("altair")
    return alt.value(full) if pick is None else alt.when(pick).then(alt.value(full)).otherwise(alt.value(0.06))


def _colour(looks: Looks, legend: bool = True) -> Any:
    alt = import_extra("altair")
    drawn = _legend() if legend and len(looks) > 1 else None
    return alt.Color("line:N", legend=drawn).scale(domain=[name for name, _ in looks], range=[at for _, at in looks])


def _dash(field: str, dashes: Mapping[str, list[int]]) -> Any:
    alt = import_extra("altair")
    return alt.StrokeDash(f"{field}:N", legend=_legend()).scale(domain=list(dashes), range=list(dashes.values()))


def _legend() -> Any:
    """All alike, since Vega-Lite merges those of the same names, and complains where they differ."""
    alt = import_extra("altair")
    return alt.Legend(title=None, orient="bottom", columns=3, labelLimit=400, symbolType="stroke", symbolSize=360)


def _layered(layers: Mapping[str, Any]) -> altair.LayerChart:
    alt = import_extra("altair")
    return alt.layer(*(layer.properties(name=name) for name, layer in layers.items()))
