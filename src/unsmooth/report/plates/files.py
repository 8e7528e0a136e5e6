"""A plate as files: the figure as SVG and PNG, its numbers as csv, all of it as a page."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from unsmooth.evidence.figure import Figure
from unsmooth.files import write_whole
from unsmooth.report.charts import PIXELS_PER_POINT, chart_svg
from unsmooth.report.evidence.figures import panels_chart
from unsmooth.report.evidence.page import picture_of
from unsmooth.report.extras import import_extra
from unsmooth.report.series import number, printable
from unsmooth.report.shell import environment, policy, resource

if TYPE_CHECKING:
    import altair

    from unsmooth.report.plates.plate import Plate

COLUMNS = ("panel", "series", "x", "y", "low", "high")


def write_plate(plate: Plate, folder: str | Path) -> list[Path]:
    """Write ``NAME.svg``, ``.png``, ``.csv`` and ``.html``; each appears whole or not at all.

    Returns:
        The files, the page last.
    """
    where = Path(folder)
    svg = chart_svg(plate_chart(plate))
    files = {
        "svg": svg.encode(),
        "png": import_extra("vl_convert").svg_to_png(svg, scale=PIXELS_PER_POINT),
        "csv": figure_csv(plate.figure).encode(),
        "html": plate_html(plate).encode("utf-8", errors="replace"),
    }
    return [write_whole(where / f"{plate.name}.{ending}", content) for ending, content in files.items()]


def plate_chart(plate: Plate) -> altair.TopLevelMixin:
    """The figure with its title, for a paper or a notebook."""
    return panels_chart(plate.figure, plate.title, of=plate.title)


def figure_csv(figure: Figure) -> str:
    r"""Every point of a figure as a line, what is not a number empty.

    >>> from unsmooth.evidence.figure import Panel, Series
    >>> panel = Panel("by depth", "layer", "cosine", [Series("plain", [0, 1], [0.5, float("nan")])])
    >>> figure_csv(Figure("", [panel])).splitlines()
    ['panel,series,x,y,low,high', 'by depth,plain,0,0.5,,', 'by depth,plain,1,,,']
    """
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(COLUMNS)
    for panel in figure.panels:
        for series in panel.series:
            missing = [None] * len(series.y)
            points = zip(series.x, series.y, series.low or missing, series.high or missing, strict=True)
            for x, *values in points:
                cells = ("" if (found := _exact(value)) is None else found for value in values)
                writer.writerow([panel.title, series.name, x, *cells])
    return held.getvalue()


def _exact(value: float | None) -> float | None:
    return None if number(value) is None else value


def plate_html(plate: Plate) -> str:
    """The page as text."""
    markup = import_extra("markupsafe").Markup
    page = environment({"plate.html.j2": "plates/plate.html.j2", "picture.html.j2": "evidence/picture.html.j2"})
    page.filters.update(printable=printable)
    return str(
        page.get_template("plate.html.j2").render(
            plate=plate,
            pictures=[picture_of(plate.figure, panel) for panel in plate.figure.panels],
            policy=policy(),
            style=markup("\n".join(map(resource, ("page.css", "evidence/evidence.css")))),
        )
    )
