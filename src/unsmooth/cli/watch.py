"""``unsmooth watch RUN``: curves of a run while it goes on, in the terminal and on a page that renews itself."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from unsmooth.cli.console import Console
from unsmooth.cli.options import Debug
from unsmooth.errors import expected, unknown_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unsmooth.monitor import Watched

_PAGE = "live.html"
_SHOWN = 4  # runs at once in a terminal
_COLOURS = ("bright_blue", "cyan", "green", "yellow", "red")


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a Monitor or of `unsmooth train`.")],
    metric: Annotated[str | None, typer.Option(help="What to draw; default the first one measured.")] = None,
    site: Annotated[str, typer.Option(help="Where in each block.")] = "residual",
    page: Annotated[bool, typer.Option("--page", help=f"Also keep {_PAGE} in RUN_DIR, which renews itself.")] = False,
    refresh: Annotated[float, typer.Option(help="Seconds between looks at the files.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Show what is there and stop, as it does off a terminal.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the newest numbers as JSON and stop.")] = False,
    debug: Debug = False,
) -> int:
    """Show how alike tokens are over the steps of a training run that is going on."""
    from unsmooth.monitor import find_watched

    if not refresh > 0:
        raise expected("--refresh above 0", refresh, "--refresh 2")
    find_watched(folder)  # a wrong folder is told of before anything is drawn
    console = Console()
    if as_json:
        typer.echo(json.dumps([_newest(run) for run in _read(folder)], allow_nan=False))
    elif once or not console.is_terminal:
        runs = _read(folder)
        if page:
            _write(runs, folder, refresh)
        console.print(_shown(runs, metric, site, console.width, console.height))
    else:
        _follow(folder, metric, site, refresh, page, console)
    return 0


def _follow(folder: Path, metric: str | None, site: str, refresh: float, page: bool, console: Any) -> None:
    """Draw anew whenever something was written, until every run has ended or somebody has seen enough."""
    from unsmooth.monitor import find_watched
    from unsmooth.monitor.folder import changed

    runs = _read(folder)
    before = None
    with Live(_shown(runs, metric, site, console.width, console.height), console=console, auto_refresh=False) as live:
        try:
            while True:
                now = [changed(path) for path in find_watched(folder)]
                if now != before:
                    before, runs = now, _read(folder)
                    live.update(_shown(runs, metric, site, console.width, console.height), refresh=True)
                    if page:
                        _write(runs, folder, refresh)
                if all(run.state in ("finished", "stopped") for run in runs):
                    return
                time.sleep(refresh)
        except KeyboardInterrupt:
            return


def _read(folder: Path) -> list[Watched]:
    from unsmooth.monitor import find_watched, read_watched

    return [read_watched(path) for path in find_watched(folder)]


def _write(runs: list[Watched], folder: Path, refresh: float) -> None:
    from unsmooth.report.live import write_live_page

    write_live_page(runs, folder / _PAGE, refresh)


def _shown(runs: list[Watched], metric: str | None, site: str, width: int, height: int) -> RenderableType:
    """The newest runs, one under another."""
    newest = sorted(runs, key=lambda run: run.readings[-1].step if run.readings else -1, reverse=True)[:_SHOWN]
    rows = max(min(height // max(len(newest), 1) - 8, 16), 4)
    parts = [_panel(run, metric, site, max(width - 4, 20), rows) for run in newest]
    rest = [Text(f"and {len(runs) - len(newest)} more runs")] if len(runs) > len(newest) else []
    return Group(*parts, *rest)


def _panel(run: Watched, metric: str | None, site: str, width: int, height: int) -> RenderableType:
    from unsmooth.numbers import spoken

    title = f"[bold]{escape(run.name)}[/bold] {escape(run.state)}"
    if not run.readings:
        return Panel(Text("nothing has been read yet"), title=title, title_align="left")
    metric = metric or run.curves[0][0]
    stacks = [stack for one, at, stack in run.curves if (one, at) == (metric, site)]
    if not stacks:
        known = dict.fromkeys(f"{one} at {at}" for one, at, _ in run.curves)
        raise unknown_name("curve of this run", f"{metric} at {site}", known)
    last = run.readings[-1]
    lines = [
        Text(f"{metric} at {site}, step {last.step:,}" + (f", loss {spoken(run.loss[-1][1])}" if run.loss else "")),
        *(line for stack in stacks for line in _curves(run, (metric, site, stack), width, height // len(stacks))),
        *(Text(f"{kind} at step {step:,}: {text}", style="yellow") for step, kind, text in run.events[-3:]),
        *(Text(f"note: {note}", style="yellow") for note in run.notes[:2]),
    ]
    return Panel(Group(*lines), title=title, title_align="left")


def _curves(run: Watched, curve: tuple[str, str, str], width: int, height: int) -> list[Any]:
    """Some layers over the steps, and what their lines mean."""
    from unsmooth.numbers import Precision, spoken

    points: dict[int, list[tuple[float, float]]] = {}
    for reading in run.readings:
        for row in reading.rows:
            if (row.metric, row.site, row.stack) == curve:
                points.setdefault(row.layer, []).append((reading.step, row.mean))
    series = {str(layer): points[layer] for layer in _some(sorted(points), len(_COLOURS))}
    colours = dict(zip(series, _COLOURS, strict=False))
    low, high = limits(series)
    lines = []
    for number, letters in enumerate(draw(series, width - 10, height)):
        label = high if number == 0 else low if number == height - 1 else None
        line = Text(f"{'' if label is None else f'{spoken(label, 3)}':>8} ")
        for letter, owner in letters:
            line.append(letter, style=colours.get(owner, ""))
        lines.append(line)
    legend, say = Text(f"{curve[2]:>8} "), Precision.of((low, high))
    for name, line_points in series.items():
        legend.append(f"layer {name}: {say(line_points[-1][1])}   ", style=colours[name])
    return [*lines, legend]


def _some(layers: list[int], count: int) -> list[int]:
    """The first, the last, and some between.

    >>> _some(list(range(13)), 5)
    [0, 3, 6, 9, 12]
    """
    places = dict.fromkeys(round(place * (len(layers) - 1) / max(count - 1, 1)) for place in range(count))
    return [layers[place] for place in places]


def _newest(run: Watched) -> dict[str, Any]:
    from unsmooth.files import finite

    last = run.readings[-1].line() if run.readings else None
    told = [{"step": step, "kind": kind, "text": text} for step, kind, text in run.events]
    found = {"folder": str(run.folder), "name": run.name, "state": run.state, "reading": last, "events": told}
    return {key: finite(value) for key, value in found.items()}


# Dot of a letter by column and row, as bits of its number above U+2800.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
Points = Sequence[tuple[float, float]]


def draw(series: Mapping[str, Points], width: int, height: int) -> list[list[tuple[str, str]]]:
    """Curves over one another as lines of (letter, name of the curve that drew it last, or nothing).

    >>> lines = draw({"a": [(0, 0), (1, 1)]}, 2, 1)
    >>> "".join(letter for letter, _ in lines[0])
    '⡠⠊'
    """
    finite = {name: [one for one in points if math.isfinite(one[1])] for name, points in series.items()}
    every = [one for points in finite.values() for one in points]
    letters = [[0] * width for _ in range(height)]
    owners = [[""] * width for _ in range(height)]
    if every:
        left, right = min(x for x, _ in every), max(x for x, _ in every)
        low, high = limits(series)
        for name, points in finite.items():
            dots = [
                (_scaled(x, left, right, 2 * width - 1), 4 * height - 1 - _scaled(y, low, high, 4 * height - 1))
                for x, y in sorted(points)
            ]
            for column, row in _joined(dots):
                letters[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
                owners[row // 4][column // 2] = name
    return [
        [(chr(0x2800 + bits) if bits else " ", owner) for bits, owner in zip(line, names, strict=True)]
        for line, names in zip(letters, owners, strict=True)
    ]


def limits(series: Mapping[str, Points]) -> tuple[float, float]:
    """The lowest and highest value, a little apart where they are equal.

    >>> limits({"a": [(0, 1.0), (1, 3.0)]})
    (1.0, 3.0)
    """
    values = [y for points in series.values() for _, y in points if math.isfinite(y)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _scaled(value: float, low: float, high: float, most: int) -> int:
    return round((value - low) / (high - low) * most) if high > low else 0


def _joined(dots: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every dot on the straight lines between neighbours."""
    found = dots[:1]
    for (x, y), (next_x, next_y) in pairwise(dots):
        steps = max(abs(next_x - x), abs(next_y - y), 1)
        found += [
            (x + round((next_x - x) * part / steps), y + round((next_y - y) * part / steps))
            for part in range(1, steps + 1)
        ]
    return found
