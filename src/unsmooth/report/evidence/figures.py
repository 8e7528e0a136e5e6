"""A claim's figure as a chart for notebooks and documentation, and panel by panel as SVG for the page."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from unsmooth.errors import expected
from unsmooth.evidence.figure import Figure, Panel
from unsmooth.evidence.ledger import Entry
from unsmooth.report.charts import FAINT, INK, chart_config, chart_svg
from unsmooth.report.evidence.draw import draw_panel
from unsmooth.report.evidence.rows import axes_of, looks_of, tables_of
from unsmooth.report.extras import import_extra
from unsmooth.report.series import printable

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
