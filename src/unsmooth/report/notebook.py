"""What a scan looks like as the last line of a notebook cell."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from unsmooth.errors import UnsmoothError
from unsmooth.numbers import spoken
from unsmooth.report.charts import chart_svg, layer_chart
from unsmooth.report.series import measured, series_of

if TYPE_CHECKING:
    from unsmooth.scanning.result import Scan

_COLUMNS = 5


def notebook_html(scan: Scan) -> str:
    """The sentence, a few layers of every metric and the first metric's curve; no curve without the report extra.

    Of a model with several stacks all that comes once for each.
    """
    if scan.stacks:
        each = "".join(f"<h4>{escape(part.name)}</h4>{notebook_html(part)}" for part in scan.stacks)
        return f'<div class="unsmooth-scans">{each}</div>'
    own = series_of([scan])[:1]  # the baseline is in the sentence and in the curve
    pairs = [(metric, site) for metric, sites in measured(own).items() for site in sites]
    parts = [f"<p><strong>{escape(scan.sentence or scan.name)}</strong></p>"]
    if not scan.complete:
        parts.append("<p><em>Interrupted: the numbers cover what was done until then.</em></p>")
    parts += [f"<p><em>{escape(note)}</em></p>" for note in scan.notes]
    if pairs:
        parts += [_table(scan, pairs), _curve(scan, *pairs[0])]
    return f'<div class="unsmooth-scan">{"".join(parts)}</div>'


def _table(scan: Scan, pairs: Sequence[tuple[str, str]]) -> str:
    layers = _spread(scan.layers)
    head = "".join(f"<th>layer {layer}</th>" for layer in layers)
    lines = []
    for metric, site in pairs:
        cells = _cells(scan, metric, site)
        values = "".join(f"<td>{spoken(cells.get(layer))}</td>" for layer in layers)
        lines.append(f"<tr><td>{escape(metric)}</td><td>{escape(site)}</td>{values}</tr>")
    body = "".join(lines)
    return f"<table><thead><tr><th>metric</th><th>site</th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(scan: Scan, metric: str, site: str) -> dict[int, float]:
    return {row.layer: row.mean for row in scan.rows if row.metric == metric and row.site == site}


def _spread(layers: Sequence[int]) -> list[int]:
    """First, last and some layers between.

    >>> _spread(range(13))
    [0, 3, 6, 9, 12]
    """
    last, steps = len(layers) - 1, min(_COLUMNS, len(layers)) - 1
    return [layers[round(last * step / steps)] for step in range(steps + 1)] if steps else list(layers)


def _curve(scan: Scan, metric: str, site: str) -> str:
    try:
        return chart_svg(layer_chart([scan], metric, site))
    except UnsmoothError:  # the extra is not installed; the table says the same in numbers
        return ""
