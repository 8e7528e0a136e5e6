"""A figure and what a reader needs beside it, as plain data and as files: SVG, PNG, csv and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.files import write_whole
from unsmooth.numbers import spoken
from unsmooth.report.charts import PIXELS_PER_POINT, chart_svg
from unsmooth.report.evidence.figures import panels_chart
from unsmooth.report.evidence.page import picture_of
from unsmooth.report.series import number, printable
from unsmooth.report.shell import import_extra, page_html

if TYPE_CHECKING:
    import altair

    from unsmooth.presets import Preset
    from unsmooth.scanning.definitions import Definitions
    from unsmooth.scanning.result import Row


@dataclass(frozen=True)
class Table:
    """Lines of text under heads; the first column names the line."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Definition:
    """A definition: what it is called, where it comes from, and what is known about it."""

    name: str
    summary: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Plate:
    """A figure and what a reader needs beside it.

    Args:
        name: What its files are called.
        title: What it shows.
        sentence: What is to be seen in it.
        figure: The picture.
        cards: The definitions behind the numbers.
        tables: Numbers in words.
        notes: What else must be known.
    """

    name: str
    title: str
    sentence: str
    figure: Figure
    cards: tuple[Definition, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


def card_of(preset: Preset) -> Definition:
    """A preset as a definition."""
    told = preset.describe()
    facts = {
        "Source": preset.source,
        "Rests on": told["basis"],
        "Metric": preset.curve,
        "Tokens": "without class and other special tokens" if preset.tokens == "content" else "all but padding",
        "Sites": ", ".join(preset.sites),
        "Average": preset.aggregation,
        "Not known": "; ".join(preset.unknown),
        "Differs from the source": "; ".join(preset.differs),
    }
    return Definition(preset.name, preset.summary, {label: text for label, text in facts.items() if text})


def curve_series(name: str, rows: Sequence[Row], at: Sequence[float] | None = None) -> Series:
    """A curve with its 95 % interval, over layers unless `at` says where the rows lie."""
    places = [float(row.layer) for row in rows] if at is None else list(at)
    low, high = [row.ci_low for row in rows], [row.ci_high for row in rows]
    return Series(name, places, [row.mean for row in rows], low, high)


def through_the_blocks(rows: Sequence[Row]) -> tuple[list[Row], list[float]]:
    """Rows of "residual" and "mid" as one curve through the stream: the middle of block l lies at l − ½.

    Returns:
        The rows in the order of the stream, and where each lies.
    """
    placed = sorted((row.layer - (0.5 if row.site == "mid" else 0.0), row.site, row) for row in rows)
    return [row for *_, row in placed], [at for at, *_ in placed]


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
    return page_html(
        "plates/plate.html.j2",
        ["evidence/picture.html.j2"],
        styles=("page.css", "evidence/evidence.css"),
        filters={"printable": printable},
        plate=plate,
        pictures=[picture_of(plate.figure, panel) for panel in plate.figure.panels],
    )


_VERDICTS = {"more": "more alike", "less": "less alike", "open": "neither clearly"}


def definitions_plate(found: Definitions) -> Plate:
    """All curves, a panel for each quantity; the last layers in a table; and how far two definitions are apart."""
    return Plate(
        name="presets",
        title=f"{found.name} under {len(found.scans)} published definitions",
        sentence=found.sentence,
        figure=Figure(
            "Output of each block by layer, mean with 95 % interval. Curves are on one pair of axes where they are "
            "definitions of one quantity; no others can be compared.",
            [_panel(found, quantity, names) for quantity, names in found.quantities.items()],
        ),
        cards=tuple(card_of(preset) for preset in found.presets.values()),
        tables=(_last_layers(found), *([_gaps(found)] if found.gaps else [])),
        notes=tuple(f"{name} is left out. {why}" for name, why in found.left_out.items()),
    )


def _panel(found: Definitions, quantity: str, names: list[str]) -> Panel:
    series: list[Series] = [curve_series(name, found.curve(name)) for name in names]
    title = quantity if len(names) > 1 else f"{quantity} ({names[0]})"
    return Panel(title, "layer", quantity, series)


def _last_layers(found: Definitions) -> Table:
    lines = []
    for quantity, names in found.quantities.items():
        for name in names:
            first, *_, last = found.curve(name)
            told = found.scans[name].metrics[found.presets[name].curve]
            ends = (spoken(first.mean), f"{spoken(last.mean)} [{spoken(last.ci_low)}, {spoken(last.ci_high)}]")
            lines.append((name, quantity, told.name, *ends, _VERDICTS[found.verdict(name)]))
    last_layer = found.curve(next(iter(found.scans)))[-1].layer
    heads = ("preset", "quantity", "metric", "layer 0", f"layer {last_layer} [95 % interval]", "tokens become")
    return Table("First and last layer", heads, tuple(lines))


def _gaps(found: Definitions) -> Table:
    lines = tuple(
        (gap.quantity, spoken(gap.size), str(gap.layer), f"{gap.higher} above {gap.lower}") for gap in found.gaps
    )
    return Table("Furthest apart", ("quantity", "difference", "at layer", "between"), lines)
