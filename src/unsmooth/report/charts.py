"""Layer curves as Vega-Lite charts, for notebooks, for the page and as SVG and PNG for papers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.files import write_whole
from unsmooth.numbers import spoken
from unsmooth.report.series import DrawnScan, chance_levels, measured, number, printable, series_of
from unsmooth.report.shell import import_extra

if TYPE_CHECKING:
    import altair

    from unsmooth.scanning.result import Row, Scan

LAYER_TITLE = "layer (0 = input of the first block)"
FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
INK, FAINT = "#222222", "#767676"
PIXELS_PER_POINT = 2.5
_TOOLTIP = (
    ("scan:N", "scan"),
    ("layer:Q", "layer"),
    ("value:N", "mean"),
    ("interval:N", "95 % interval"),
    ("sequences:Q", "sequences"),
)


def layer_chart(scans: Sequence[Scan], metric: str = "mean_cosine", site: str = "residual") -> altair.LayerChart:
    """The curve of one metric over the layers, one colour per scan, with its 95 % interval and chance level.

    Args:
        scans: Drawn over one another; those without this metric at this site are left out.
        metric: A metric of at least one scan.
        site: A site of at least one scan.

    Returns:
        An Altair chart. Clicking on names in its legend picks the curves to look at.
    """
    every = series_of(scans)
    series = [one for one in every if one.curve(metric, site)]
    if not series:
        raise _not_measured(every, metric, site)
    alt = import_extra("altair")
    rows = [row for one in series for row in chart_rows(one.name, one.curve(metric, site))]
    chance = chance_levels(series, metric)
    layers = draw(series, alt.Data(values=rows), alt.Data(values=chance), metric)
    # Vega warns about a layer whose field has no number at all, so such layers are not drawn.
    if all(row["low"] is None for row in rows):
        del layers["band"]
    if not chance:
        del layers["chance"], layers["label"]
    title = alt.TitleParams(printable(metric), subtitle=_subtitle(series[0].scan, metric, site))
    chart = alt.layer(*layers.values()).properties(title=title, width=560, height=320)
    return chart.configure(**chart_config(INK, FAINT, "white"))


def draw(series: Sequence[DrawnScan], curves: Any, chance: Any, metric: str) -> dict[str, altair.Chart]:
    """The layers band, line, point, chance and label, bottom to top, on any kind of Altair data."""
    alt = import_extra("altair")
    names = [one.name for one in series]
    # Colour and dash have the same legend, which Vega-Lite then draws as one.
    legend = alt.Legend(title=None, orient="bottom", columns=1, symbolType="stroke", labelLimit=520)
    colour = alt.Color("scan:N", legend=legend).scale(domain=names, range=[one.colour for one in series])
    dashes = [[6, 4] if one.dashed else [1, 0] for one in series]
    dash = alt.StrokeDash("scan:N", legend=legend).scale(domain=names, range=dashes)
    pick = alt.selection_point(name="picked", fields=["scan"], bind="legend", toggle="true")
    x = alt.X("layer:Q", title=LAYER_TITLE).axis(tickMinStep=1, format="d").scale(nice=False, padding=8)
    low, mean, level = (_height(field, metric) for field in ("low", "mean", "chance"))
    shown = {full: alt.when(pick).then(alt.value(full)).otherwise(alt.value(0.06)) for full in (0.18, 1.0)}
    tooltip = [alt.Tooltip(field, title=title) for field, title in _TOOLTIP]
    base = alt.Chart(curves).encode(x=x, color=colour)
    reference = alt.Chart(chance).encode(y=level)
    layers = {
        "band": base.mark_area().encode(y=low, y2="high:Q", fillOpacity=shown[0.18]),
        "line": base.mark_line(strokeWidth=2).encode(y=mean, strokeDash=dash, opacity=shown[1.0]),
        "point": base.mark_circle(size=40).encode(y=mean, opacity=shown[1.0], tooltip=tooltip),
        "chance": reference.mark_rule(strokeDash=[2, 3], strokeWidth=1.2),
        "label": reference.mark_text(align="right", baseline="bottom", dy=-3, dx=-2).encode(
            x=alt.value("width"), text="label:N"
        ),
    }
    # The legend answers to clicks only where the selection sits on the layer that owns the dashes.
    layers["line"] = layers["line"].add_params(pick)
    return {name: layer.properties(name=name) for name, layer in layers.items()}


def _not_measured(series: Sequence[DrawnScan], metric: str, site: str) -> UnsmoothError:
    pairs = measured(series)
    if metric not in pairs:
        return unknown_name("metric of these scans", metric, pairs)
    places = ", ".join(pairs[metric])
    return expected(f"a site where {metric} was measured ({places})", repr(site), "scanning again with sites=(…)")


def _height(field: str, metric: str) -> Any:
    alt = import_extra("altair")
    return alt.Y(f"{field}:Q", title=printable(metric)).scale(zero=False)


def chart_rows(name: str, curve: Sequence[Row]) -> list[dict[str, Any]]:
    """The data of one curve; what is not a finite number is None and becomes a gap."""
    rows = []
    for row in curve:
        low, high = number(row.ci_low), number(row.ci_high)
        both = low is not None and high is not None
        rows.append(
            {
                "scan": name,
                "layer": row.layer,
                "mean": number(row.mean),
                "low": low if both else None,
                "high": high if both else None,
                "value": spoken(row.mean),
                "interval": f"{spoken(low)} to {spoken(high)}" if both else "none",
                "sequences": row.sequences,
            }
        )
    return rows


def chart_config(ink: str, faint: str, background: str, font: str = FONT) -> dict[str, Any]:
    """Sober axes; `ink` for what is read, `faint` for what guides the eye."""
    text = {"labelFont": font, "titleFont": font, "labelColor": ink, "titleColor": ink}
    sizes = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    quiet = {"gridColor": faint, "gridOpacity": 0.22, "domainColor": faint, "tickColor": faint}
    return {
        "background": background,
        "view": {"stroke": None},
        "axis": {**text, **sizes, **quiet, "titlePadding": 10},
        "axisX": {"grid": False},
        "legend": {**text, "labelFontSize": 12, "symbolSize": 360, "symbolStrokeWidth": 2.4},
        "rule": {"color": faint},
        "text": {"color": faint, "font": font, "fontSize": 11},
        "title": {
            **{"font": font, "subtitleFont": font, "color": ink, "subtitleColor": faint},
            **{"anchor": "start", "frame": "group", "fontSize": 15, "subtitleFontSize": 11.5},
            **{"offset": 12, "subtitlePadding": 5},
        },
    }


def save_figures(scans: Sequence[Scan], folder: str | Path) -> list[Path]:
    """Draw every metric at every site into `folder`, as SVG and as PNG, without a browser.

    Returns:
        The files, named ``metric-site.svg`` and ``metric-site.png``; profiles are ``metric-site-profile.svg``.
    """
    convert = import_extra("vl_convert")
    taken: set[str] = set()
    written = []
    for metric, sites in measured(series_of(scans)).items():
        for site in sites:
            stem = Path(folder) / slug(f"{metric}-{site}", taken)
            svg = chart_svg(layer_chart(scans, metric, site))
            png = convert.svg_to_png(svg, scale=PIXELS_PER_POINT)
            written.append(write_whole(stem.with_name(f"{stem.name}.svg"), svg.encode()))
            written.append(write_whole(stem.with_name(f"{stem.name}.png"), png))
    return written + _save_profiles(scans, Path(folder), taken)


def _save_profiles(scans: Sequence[Scan], folder: Path, taken: set[str]) -> list[Path]:
    """Every profile of every scan as SVG, named after the metric, its site and, where there are several, the scan."""
    from unsmooth.report.profiles import profile_chart

    written = []
    for scan in scans:
        for profile in scan.profiles:
            who = f"-{scan.name}" if len(scans) > 1 else ""
            stem = slug(f"{profile.metric}-{profile.stack}-{profile.site}-profile{who}", taken)
            written.append(write_whole(folder / f"{stem}.svg", chart_svg(profile_chart(profile)).encode()))
    return written


def chart_svg(chart: altair.TopLevelMixin) -> str:
    """A chart as SVG text."""
    return str(import_extra("vl_convert").vegalite_to_svg(chart.to_dict()))


def _subtitle(scan: Scan, metric: str, site: str) -> list[str]:
    card = scan.metrics.get(metric)
    place = f"{site}: {scan.sites[site]}" if scan.sites.get(site) else site
    lines = [card.definition if card else "", place]
    return [line for text in lines for line in textwrap.wrap(printable(text), 88)]


def slug(text: str, taken: set[str]) -> str:
    """A file name for any system: lower case, since some systems do not tell case apart."""
    stem = re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")[:80] or "figure"
    candidate, count = stem, 2
    while candidate in taken:
        candidate, count = f"{stem}-{count}", count + 1
    taken.add(candidate)
    return candidate
