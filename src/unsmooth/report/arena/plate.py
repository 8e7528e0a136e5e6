"""An arena as a plate: differences to the plain model, similarity by layer at start and end, a table of each model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from unsmooth.arena.plan import PLAIN
from unsmooth.arena.standing import Standing, Standings
from unsmooth.evidence.figure import Figure, Panel, Series, on_one_scale, with_intervals
from unsmooth.report.arena.words import (
    cells_of,
    failures_of,
    findings_of,
    heads_of,
    notes_of,
    scale_of,
    scaled,
    sentence_of,
)
from unsmooth.report.plates import Plate, Table, write_plate
from unsmooth.report.series import PALETTE

_TOGETHER = len(PALETTE) - 1
"""Remedies in one picture beside the plain model: as many as there are colours."""


def write_arena_report(found: Standings, folder: str | Path) -> Path | None:
    """Write ``arena.html``, and the figure as SVG, PNG and csv beside it; returns the page, None before the first run.

    Args:
        found: What `standings` gives.
        folder: Where to.
    """
    plate = arena_plate(found)
    return write_plate(plate, folder)[-1] if plate.figure.panels else None


def arena_plate(found: Standings) -> Plate:
    """All that the page shows."""
    recipe = next(iter(found.plan.models.values())).recipe
    count = len(found.plan.remedies) - 1
    return Plate(
        name="arena",
        title=f"{recipe}: {count} {'remedy' if count == 1 else 'remedies'} at equal budget",
        sentence=sentence_of(found),
        figure=Figure(
            "Score of each remedy minus that of the plain model with the same seed, and mean cosine of the tokens by "
            f"layer before and after training; {_over_seeds(found)}.",
            [panel for model in found.plan.models for panel in _panels(found, model)],
        ),
        tables=tuple(_table(found, model) for model in found.plan.models),
        notes=(*findings_of(found), *failures_of(found), *notes_of(found)),
    )


def _table(found: Standings, model: str) -> Table:
    """Of one model: to be read across, a line must be no wider than a page."""
    title = f"All entrants, {model}" if len(found.plan.models) > 1 else "All entrants"
    lines = tuple(cells_of(found, line, naming=False) for line in found.of(model))
    return Table(title, heads_of(found, naming=False), lines)


def _over_seeds(found: Standings) -> str:
    if len(found.plan.seeds) == 1:
        return "of one seed"
    return "means over seeds with 95 % intervals, which curves do not have where a seed is missing"


def _panels(found: Standings, model: str) -> Iterator[Panel]:
    of = f", {model}" if len(found.plan.models) > 1 else ""
    lines = found.of(model)
    compared = [line for line in lines if line.difference is not None]
    if compared:
        yield _differences(found, compared, of)
    yield from on_one_scale(list(_similarities(lines, of, len(found.plan.seeds))))


def _similarities(lines: Sequence[Standing], of: str, seeds: int) -> Iterator[Panel]:
    """Before and after training, some remedies at a time."""
    plain = [line for line in lines if line.entrant.remedy == PLAIN]
    others = [line for line in lines if line.entrant.remedy != PLAIN and (line.start or line.end)]
    groups = [others[begin : begin + _TOGETHER] for begin in range(0, len(others), _TOGETHER)] or [[]]
    for number, group in enumerate(groups, start=1):
        part = f" ({number} of {len(groups)})" if len(groups) > 1 else ""
        for moment in ("start", "end"):
            if series := list(_curves([*plain, *group], moment, seeds)):
                yield Panel(f"mean cosine at the {moment}{of}{part}", "layer", "mean cosine", series)


def _differences(found: Standings, lines: Sequence[Standing], of: str) -> Panel:
    scale = scale_of(found)
    names = [line.entrant.remedy for line in lines]
    gaps = [scaled(line.difference, scale) for line in lines if line.difference is not None]
    unit = "percentage points of " if scale == 100 else ""
    series = with_intervals("minus plain", names, gaps, "points")
    return Panel(f"difference to plain{of}", "remedy", f"{unit}{found.plan.score}", [series], reference=0.0)


def _curves(lines: Sequence[Standing], moment: str, seeds: int) -> Iterator[Series]:
    """Without an interval where it rests on fewer seeds: that of two is wider than all that there is to see."""
    for line in lines:
        curve = line.start if moment == "start" else line.end
        if curve:
            drawn = with_intervals(line.entrant.remedy, list(range(len(curve))), curve)
            yield drawn if curve[0].count == seeds else replace(drawn, low=None, high=None)
