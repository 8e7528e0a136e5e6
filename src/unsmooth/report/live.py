"""A page of runs that are going on: a plain file, rewritten whole, that asks to be read again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.numbers import spoken
from unsmooth.report.series import printable
from unsmooth.report.shell import page_html, write_page

if TYPE_CHECKING:
    from unsmooth.monitor import Watched

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 260, 66, 30, 8
_MOST = 400  # points of a curve; more cannot be told apart
# The first layer dark and cold, the last one warm.
_COLD, _WARM = (38, 84, 163), (213, 94, 0)


def write_live_page(runs: Sequence[Watched], path: str | Path, refresh: float = 2.0) -> Path:
    """Write the page; while a run goes on it renews itself every `refresh` seconds. Returns its path.

    Args:
        runs: What `unsmooth.monitor.read_watched` read.
        path: Where to; the file appears whole or not at all.
        refresh: Seconds, at least one.
    """
    return write_page(path, live_html(runs, refresh))


def live_html(runs: Sequence[Watched], refresh: float = 2.0) -> str:
    """The page as text."""
    going = any(run.state not in ("finished", "stopped") for run in runs)
    return page_html(
        "live.html.j2",
        runs=[_run(run) for run in runs],
        refresh=max(math.ceil(refresh), 1) if going else None,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
    )


def _run(run: Watched) -> dict[str, Any]:
    return {
        "name": printable(run.name),
        "state": printable(run.state),
        "step": f"{run.readings[-1].step:,}" if run.readings else "–",
        "loss": spoken(run.loss[-1][1]) if run.loss else "",
        "events": [(f"{step:,}", printable(kind), printable(text)) for step, kind, text in run.events[-12:]],
        "notes": [printable(note) for note in run.notes],
        "charts": [chart(run, *curve) for curve in run.curves],
    }


def chart(run: Watched, metric: str, site: str, stack: str) -> dict[str, Any]:
    """One metric at one site of a stack over the steps, a line for each layer: places in an SVG of fixed size."""
    lines: dict[int, list[tuple[int, float]]] = {}
    for reading in run.readings:
        for row in reading.rows:
            if (row.metric, row.site, row.stack) == (metric, site, stack):
                lines.setdefault(row.layer, []).append((reading.step, row.mean))
    values = [y for points in lines.values() for _, y in points if math.isfinite(y)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    last = max((points[-1][0] for points in lines.values()), default=0) or 1
    ends = [_WIDTH - 10 - _LEFT, _HEIGHT - _BOTTOM - _TOP]

    def place(step: int, value: float) -> str:
        x, y = _LEFT + ends[0] * step / last, _TOP + ends[1] * (high - value) / (high - low)
        return f"{x:.1f},{y:.1f}"

    deepest = max(lines, default=0) or 1
    return {
        "title": f"{printable(metric)} at {printable(site)}" + (f" of the {printable(stack)}" if stack else ""),
        "low": spoken(low),
        "high": spoken(high),
        "last": f"{last:,}",
        "lines": [
            {
                "layer": layer,
                "colour": _colour(layer / deepest),
                "value": spoken(points[-1][1]),
                "pieces": [" ".join(place(*one) for one in piece) for piece in _pieces(_thinned(points))],
            }
            for layer, points in sorted(lines.items())
        ],
    }


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    step = -(-len(points) // _MOST)
    return points if step < 2 else [*points[:-1:step], points[-1]]


def _pieces(points: list[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """The stretches between NaNs.

    >>> _pieces([(0, 1.0), (1, math.nan), (2, 3.0)])
    [[(0, 1.0)], [(2, 3.0)]]
    """
    pieces: list[list[tuple[int, float]]] = [[]]
    for one in points:
        if math.isfinite(one[1]):
            pieces[-1].append(one)
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _colour(share: float) -> str:
    """From the first layer to the last.

    >>> _colour(0.0), _colour(1.0)
    ('#2654a3', '#d55e00')
    """
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(_COLD, _WARM, strict=True))
