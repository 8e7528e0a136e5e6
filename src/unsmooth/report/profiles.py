"""Profiles as maps: layers upwards, the axis of the profile to the right, the number as a colour."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unsmooth.numbers import spoken
from unsmooth.report.charts import FAINT, INK, chart_config, chart_svg
from unsmooth.report.series import DrawnScan, number, printable
from unsmooth.report.shell import import_extra

if TYPE_CHECKING:
    import altair

    from unsmooth.scanning.profile import Profile

_HEIGHT, _WIDTH, _CELL = 320, 560, 22
# Bytes of pictures on a page; the rest are in the files.
_MOST = 500_000


def profile_chart(profile: Profile) -> altair.Chart:
    """A map of one profile: a cell for each layer and place on the axis.

    Args:
        profile: From `Scan.profile`.

    Returns:
        An Altair chart. A matrix of layers is square. What is not a number stays white.
    """
    title = import_extra("altair").TitleParams(printable(profile.metric), subtitle=_subtitle(profile))
    made: altair.Chart = _map(profile).properties(title=title).configure(**chart_config(INK, FAINT, "white"))
    return made


def _map(profile: Profile) -> Any:
    alt = import_extra("altair")
    side = min(_HEIGHT, max(120, _CELL * len(profile.lines)))
    # Ordinal axes: cells of equal size without gaps, whatever the axis counts.
    form = "d" if profile.axis == "layer" else ".2~f"
    across = alt.X("at:O", title=printable(profile.axis)).axis(labelOverlap="greedy", format=form, labelAngle=0)
    up = alt.Y("layer:O", title="layer").sort("descending").axis(labelOverlap="greedy")
    colour = alt.Color("value:Q", title=None).scale(scheme="viridis").legend(format=".3~f")
    tooltip = [
        alt.Tooltip("layer:Q", title="layer"),
        alt.Tooltip("at:Q", title=printable(profile.axis)),
        alt.Tooltip("told:N", title="value"),
    ]
    cells = alt.Chart(alt.Data(values=profile_rows(profile))).mark_rect()
    drawn = cells.encode(x=across, y=up, color=colour, tooltip=tooltip)
    return drawn.properties(width=side if profile.axis == "layer" else _WIDTH, height=side)


def profile_rows(profile: Profile) -> list[dict[str, Any]]:
    """The cells; what is not a finite number is left out."""
    return [
        {"layer": line.layer, "at": number(at), "value": number(value), "told": spoken(value)}
        for line in profile.lines
        for at, value in zip(line.at, line.values, strict=True)
        if number(value) is not None
    ]


def _subtitle(profile: Profile) -> list[str]:
    return textwrap.wrap(printable(f"{profile.meaning}; {place_of(profile)}"), 88)


def place_of(profile: Profile) -> str:
    """Stack and site in words."""
    return f"{profile.stack}, {profile.site}" if profile.stack else profile.site


@dataclass(frozen=True)
class Picture:
    """A profile on the page: what it is, and its drawing."""

    scan: str
    metric: str
    said: str
    svg: Any


def profile_pictures(series: Sequence[DrawnScan]) -> tuple[list[Picture], int]:
    """The profiles of all scans as SVG in the colour of the text around it, and how many there was no room for."""
    markup = import_extra("markupsafe").Markup
    pictures: list[Picture] = []
    room, left_out = _MOST, 0
    for one in series:
        for profile in one.scan.profiles:
            svg = _svg(profile) if room > 0 and profile_rows(profile) else ""
            room -= len(svg)
            if svg and room >= 0:
                said = f"{profile.meaning}, by layer and {profile.axis}; {place_of(profile)}"
                pictures.append(Picture(one.name, profile.metric, said, markup(svg)))
            else:
                left_out += 1
    return pictures, left_out


def _svg(profile: Profile) -> str:
    config = chart_config("currentColor", "currentColor", "transparent")
    config["axis"].update(domainOpacity=0.5, tickOpacity=0.5, grid=False)
    return chart_svg(_map(profile).configure(**config))
