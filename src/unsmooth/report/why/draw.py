"""The pictures of an explanation as Vega-Lite charts, on any kind of Altair data.

Every function takes tables by name and draws only the layers whose table is there: Vega warns about a layer whose
field has no number at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unsmooth.report.series import PALETTE
from unsmooth.report.shell import import_extra
from unsmooth.report.why.rows import CAUSES, LOOKS, PARTS, verdict_label

if TYPE_CHECKING:
    import altair

Tables = Mapping[str, Any]
MEAN, REST, THIRD, FOURTH, GREY = PALETTE[1], PALETTE[0], PALETTE[2], PALETTE[3], PALETTE[6]
_SIDES = {"|1 + λ/σ| above 1": MEAN, "below 1": REST, "1 within 0.1 %": GREY}
# Table to label and dash: dashes are told apart without colour.
CIRCLES = {
    "averaging": ("attention that averages all tokens", [1, 0]),
    "smallest": ("attention with eigenvalues from m to 1", [6, 4]),
    "measured": ("measured attention, all heads", [2, 2]),
}
_DASHES = [[1, 0], [6, 4], [2, 3]]
_DIRECTIONS = {"direction foretold": (REST, "circle"), "direction missed": (MEAN, "cross")}


def draw_cloud(tables: Tables) -> altair.LayerChart:
    """Eigenvalues in the complex plane: `cloud`, its `top`, `CIRCLES`, and a `frame` that gives axes equal units."""
    alt = import_extra("altair")
    x = alt.X("re:Q", title="real part of λ/σ").scale(zero=False, nice=False)
    y = alt.Y("im:Q", title="imaginary part of λ/σ").scale(zero=False, nice=False)
    outside, inside, edge = _SIDES
    growth = "sqrt(pow(1 + datum.re, 2) + pow(datum.im, 2))"
    side = f"datum.growth > 1.001 ? '{outside}' : datum.growth < 0.999 ? '{inside}' : '{edge}'"
    tooltip = [
        alt.Tooltip("re:Q", title="real part", format=".4~g"),
        alt.Tooltip("im:Q", title="imaginary part", format=".4~g"),
        alt.Tooltip("growth:Q", title="|1 + λ/σ|", format=".4~g"),
    ]
    layers = {"frame": alt.Chart(tables["frame"]).mark_point(opacity=0, tooltip=False, aria=False).encode(x=x, y=y)}
    circles = {name: look for name, look in CIRCLES.items() if name in tables}
    labels, dashes = zip(*circles.values(), strict=True)
    dash = alt.StrokeDash("circle:N", legend=_legend(symbolType="stroke")).scale(domain=labels, range=dashes)
    for name in circles:
        closed = alt.Chart(tables[name]).mark_line(
            interpolate="linear-closed", aria=False, stroke=REST, fill=REST, fillOpacity=0.07, strokeWidth=1.6
        )
        layers[name] = closed.encode(x=x, y=y, order="step:Q", strokeDash=dash)
    if "cloud" in tables:
        points = alt.Chart(tables["cloud"]).transform_calculate(growth=growth).transform_calculate(side=side)
        shown = points.encode(x=x, y=y, color=_colour("side", _SIDES, columns=3), tooltip=tooltip)
        layers["cloud"] = shown.mark_circle(size=22, opacity=0.65, aria=False)
        layers["top"] = (
            alt.Chart(tables["top"]).mark_point(size=170, style="ink", strokeWidth=1.6, aria=False).encode(x=x, y=y)
        )
    return _layered(layers)


def draw_verdicts(tables: Tables) -> altair.LayerChart:
    """Layers by heads: a coloured cell with a sign in it, the whole layer above its heads."""
    alt = import_extra("altair")
    looks = {verdict_label(verdict): look.colour for verdict, look in LOOKS.items()}
    base = alt.Chart(tables["cells"]).encode(
        x=alt.X("layer:O", title="layer").axis(labelAngle=0, labelOverlap=True),
        y=alt.Y("row:N", title=None, sort=None),
        tooltip=[alt.Tooltip(f"{name}:N", title=name) for name in ("layer", "row", "verdict", "margin", "reason")],
    )
    colour = _colour("verdict", looks, symbolType="square", columns=4)
    return _layered(
        {
            "cells": base.mark_rect(strokeWidth=1).encode(color=colour, stroke=alt.value("white")),
            "signs": base.mark_text(color="white", opacity=1, fontWeight="bold").encode(text="sign:N"),
        }
    )


def draw_prediction(tables: Tables) -> altair.LayerChart:
    """Foretold against measured change; points in the right direction lie in the quadrants of equal signs."""
    alt = import_extra("altair")
    x = alt.X("predicted:Q", title="foretold change of logit t_sim").scale(padding=14)
    y = alt.Y("measured:Q", title="measured change of logit t_sim").scale(padding=14)
    domain = list(_DIRECTIONS)
    shapes = [shape for _, shape in _DIRECTIONS.values()]
    shape = alt.Shape("direction:N", legend=_legend(columns=2)).scale(domain=domain, range=shapes)
    colour = _colour("direction", {name: colour for name, (colour, _) in _DIRECTIONS.items()}, columns=2)
    points = alt.Chart(tables["points"]).encode(x=x, y=y)
    tooltip = ["layer:Q", "predicted:Q", "measured:Q", "direction:N"]
    return _layered(
        {
            "upright": alt.Chart(tables["zero"]).mark_rule().encode(x=alt.X("zero:Q")),
            "level": alt.Chart(tables["zero"]).mark_rule().encode(y=alt.Y("zero:Q")),
            "points": points.mark_point(size=60, filled=True, opacity=0.9).encode(
                color=colour, shape=shape, tooltip=tooltip
            ),
            "names": points.mark_text(align="left", dx=7, dy=-5).encode(text="layer:Q"),
        }
    )


def draw_breakdown(tables: Tables) -> altair.LayerChart:
    """Stacked shares per layer, falls below zero, with the measured change as a diamond."""
    alt = import_extra("altair")
    x = alt.X("layer:O", title="layer").axis(labelAngle=0, labelOverlap=True)
    causes = dict(zip(CAUSES.values(), (MEAN, REST, THIRD, GREY), strict=True))
    bars = (
        alt.Chart(tables["shares"])
        .mark_bar()
        .encode(
            x=x,
            y=alt.Y("change:Q", title="change of t_sim over the layer"),
            color=_colour("cause", causes, symbolType="square", columns=2),
            order="order:Q",
            tooltip=["layer:O", "cause:N", "change:Q"],
        )
    )
    layers = {"shares": bars}
    if "measured" in tables:
        marks = alt.Chart(tables["measured"]).mark_point(
            shape="diamond", size=90, strokeWidth=1.5, stroke="black", fill="white", opacity=1
        )
        layers["measured"] = marks.encode(x=x, y="change:Q", tooltip=["layer:O", "change:Q"])
    return _layered(layers)


def draw_attention(title: str, tables: Tables) -> altair.LayerChart:
    """One quantity of attention: `heads` as points, `lines` for their mean and for the reference."""
    alt = import_extra("altair")
    y = alt.Y("value:Q", title=title).scale(zero=False, padding=8)
    dash = alt.StrokeDash("line:N", sort=None, legend=_legend(symbolType="stroke")).scale(range=_DASHES)
    layers = {}
    if "heads" in tables:
        points = alt.Chart(tables["heads"]).mark_circle(size=34, opacity=0.6, color=REST, aria=False)
        layers["heads"] = points.encode(x=_layer_axis(), y=y, tooltip=["layer:Q", "head:Q", "value:Q"])
    lines = alt.Chart(tables["lines"]).mark_line(style="ink", strokeWidth=1.8)
    layers["lines"] = lines.encode(x=_layer_axis(), y=y, strokeDash=dash)
    return _layered(layers)


def draw_gains(logarithmic: bool, tables: Tables) -> altair.LayerChart:
    """What a block does to the token mean, to the rest, and across; diamonds are the values at collapse."""
    alt = import_extra("altair")
    parts = dict(zip(PARTS.values(), (MEAN, REST, THIRD, FOURTH), strict=True))
    y = alt.Y("gain:Q", title="gain of the block's Jacobian")
    y = y.scale(type="log") if logarithmic else y.scale(zero=False, padding=8)
    # Leakage is dashed, so that the two kinds are told apart without colour.
    legend = _legend(symbolType="stroke", columns=2)
    dashes = [[1, 0], [1, 0], [5, 4], [2, 3]]
    dash = alt.StrokeDash("part:N", legend=legend).scale(domain=list(parts), range=dashes)
    encoding = {"x": _layer_axis(), "y": y, "color": _colour("part", parts, symbolType="stroke", columns=2)}
    tooltip = ["layer:Q", "part:N", "gain:Q"]
    base = alt.Chart(tables["gains"])
    layers = {
        "lines": base.mark_line(strokeWidth=2).encode(**encoding, strokeDash=dash),
        "points": base.mark_circle(size=34).encode(**encoding, tooltip=tooltip),
    }
    if "collapsed" in tables:
        marks = alt.Chart(tables["collapsed"]).mark_point(shape="diamond", size=90, strokeWidth=1.8)
        layers["collapsed"] = marks.encode(**encoding, tooltip=tooltip)
    return _layered(layers)


def draw_escalation(tables: Tables) -> altair.LayerChart:
    """The escalation rate as measured, beside its bound."""
    alt = import_extra("altair")
    lines = {"measured": MEAN, "lower bound for random weights": REST}
    legend = _legend(symbolType="stroke", columns=2)
    dash = alt.StrokeDash("line:N", legend=legend).scale(domain=list(lines), range=_DASHES)
    base = alt.Chart(tables["rates"]).encode(
        x=_layer_axis(),
        y=alt.Y("value:Q", title="escalation rate"),
        color=_colour("line", lines, symbolType="stroke", columns=2),
    )
    return _layered(
        {
            "zero": alt.Chart(tables["zero"]).mark_rule().encode(y="zero:Q"),
            "lines": base.mark_line(strokeWidth=2).encode(strokeDash=dash),
            "points": base.mark_circle(size=34).encode(tooltip=["layer:Q", "line:N", "value:Q"]),
        }
    )


def _layered(layers: Mapping[str, Any]) -> altair.LayerChart:
    alt = import_extra("altair")
    return alt.layer(*(layer.properties(name=name) for name, layer in layers.items()))


def _layer_axis() -> Any:
    alt = import_extra("altair")
    axis = alt.X("layer:Q", title="layer").axis(tickMinStep=1, format="d")
    return axis.scale(nice=False, zero=False, padding=12)


def _colour(field: str, colours: Mapping[str, str], **legend: Any) -> Any:
    alt = import_extra("altair")
    domain = {"domain": list(colours), "range": list(colours.values())}
    return alt.Color(f"{field}:N", legend=_legend(**legend)).scale(**domain)


def _legend(**options: Any) -> Any:
    alt = import_extra("altair")
    return alt.Legend(
        **{"title": None, "orient": "bottom", "columns": 1, "labelLimit": 520, "symbolSize": 90} | options
    )
