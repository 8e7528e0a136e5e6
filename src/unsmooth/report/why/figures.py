"""The pictures of an explanation for notebooks and papers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.errors import expected
from unsmooth.files import write_whole
from unsmooth.report.charts import FAINT, INK, PIXELS_PER_POINT, chart_config, chart_svg, slug
from unsmooth.report.series import printable
from unsmooth.report.shell import import_extra
from unsmooth.report.why.panels import Figures, Picture

if TYPE_CHECKING:
    import altair

    from unsmooth.explaining.result import Explanation

FORMATS = ("svg", "png", "pdf")
_WIDTH, _SQUARE = 560, 420


def why_figures(explanation: Explanation) -> dict[str, altair.LayerChart]:
    """Every picture that the explanation's data gives, by name.

    Returns:
        Altair charts: ``eigenvalues-layer-1`` and so on, ``verdicts``, ``prediction-…`` for every tier that holds,
        ``breakdown``, ``attention-…`` for every quantity, ``gains`` and ``escalation``. What has no data is left out.
    """
    taken: set[str] = set()
    return {
        slug(f"{name}-{panel.key}", taken): _chart(explanation, panel)
        for name, panels in Figures(explanation).panels().items()
        for panel in panels
    }


def save_why_figures(
    explanation: Explanation, folder: str | Path, formats: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Draw every picture of `why_figures` into `folder`, without a browser.

    Args:
        explanation: What to draw.
        folder: Made where it is missing.
        formats: Some of ``svg``, ``png`` and ``pdf``.

    Returns:
        The files, named after the pictures.
    """
    for wanted in formats:
        if wanted not in FORMATS:
            raise expected(f"formats among {', '.join(FORMATS)}", repr(wanted), "formats=('svg', 'png')")
    convert = import_extra("vl_convert")
    written = []
    for name, chart in why_figures(explanation).items():
        svg = chart_svg(chart)
        for kind in formats:
            content = svg.encode() if kind == "svg" else _converted(convert, svg, kind)
            written.append(write_whole(Path(folder) / f"{name}.{kind}", content))
    return written


def _converted(convert: Any, svg: str, kind: str) -> bytes:
    drawn: bytes = convert.svg_to_pdf(svg) if kind == "pdf" else convert.svg_to_png(svg, scale=PIXELS_PER_POINT)
    return drawn


def _chart(explanation: Explanation, panel: Picture) -> altair.LayerChart:
    alt = import_extra("altair")
    chart = panel.drawing(*panel.options, {name: alt.Data(values=rows) for name, rows in panel.tables.items()})
    square = panel.height is None
    width, height = (_SQUARE, _SQUARE) if square else (max(_WIDTH, panel.least), panel.height)
    subtitle = [printable(explanation.name), *textwrap.wrap(printable(panel.caption), 72 if square else 96)]
    title = alt.TitleParams(printable(panel.title), subtitle=subtitle)
    # How to read it is for screen readers here: a paper has a caption of its own.
    description = printable(f"{panel.title}. {panel.reading} {panel.caption}")
    chart = chart.properties(title=title, width=width, height=height, description=description)
    return chart.configure(**why_config(INK, FAINT, "white"))


def why_config(ink: str, faint: str, background: str, **options: str) -> dict[str, Any]:
    """The config of all charts, and the style ``ink`` for marks in the colour of text."""
    config = chart_config(ink, faint, background, **options)
    config["style"] = {"ink": {"color": ink}}
    return config
