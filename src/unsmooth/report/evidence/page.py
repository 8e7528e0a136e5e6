"""All claims as one HTML file, which opens from disk, runs no script and never asks a network for anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from unsmooth.evidence.claim import Section
from unsmooth.evidence.figure import Figure, Panel
from unsmooth.evidence.ledger import Entry
from unsmooth.evidence.records import Store
from unsmooth.numbers import spoken
from unsmooth.report.evidence import words
from unsmooth.report.evidence.figures import panel_svg
from unsmooth.report.evidence.rows import axes_of, looks_of, series_rows
from unsmooth.report.evidence.studies import StudyRuns, data_in_words, studies_of, variant_cells
from unsmooth.report.series import printable
from unsmooth.report.shell import import_extra, page_html, write_page

_MOST_LINES = 40  # of a table of numbers


def write_evidence_report(entries: Sequence[Entry], path: str | Path, store: Store) -> Path:
    """Write one self-contained page of all claims and return its path; it appears whole or not at all.

    Args:
        entries: As `ledger` gives them.
        path: Where to write.
        store: Where the runs of their studies are.
    """
    return write_page(path, evidence_html(entries, store))


def evidence_html(entries: Sequence[Entry], store: Store) -> str:
    """The page as text."""
    smaller = [entry for entry in entries if entry.record is not None and entry.record.scale != "full"]
    return page_html(
        "evidence/evidence.html.j2",
        ["evidence/picture.html.j2"],
        styles=("page.css", "evidence/evidence.css"),
        filters={
            "standing": words.standing,
            "effect": words.effect,
            "effect_of": words.effect_of,
            "paper": words.paper,
            "in_words": words.in_words,
            "said_of": words.said_of,
            "minutes": words.minutes,
            "printable": printable,
        },
        entries=entries,
        claims=[_claim(entry) for entry in entries],
        studies=[_study(one) for one in studies_of(entries, store)],
        counted=words.counted(entries),
        smaller=len(smaller),
        signs={**words.STANDINGS, **words.SAYS},
        sections=get_args(Section),
    )


def _claim(entry: Entry) -> dict[str, Any]:
    drawn = entry.claim.figure(entry.record.measured) if entry.record is not None else None
    return {
        "entry": entry,
        "cautions": words.cautions(entry),
        "facts": words.provenance(entry),
        "caption": drawn.caption if drawn else "",
        "pictures": [picture_of(drawn, panel) for panel in drawn.panels] if drawn else [],
    }


def picture_of(drawn: Figure, panel: Panel) -> dict[str, Any]:
    """A panel for picture.html.j2: the drawing, what it says, and its numbers."""
    svg = panel_svg(drawn, panel)
    # Vega escapes all text that it writes, so its SVG may stand in the page as it is.
    return {
        "svg": None if svg is None else import_extra("markupsafe").Markup(svg),
        "title": panel.title,
        "said": printable(f"{panel.title}: {panel.y} by {panel.x}. {drawn.caption}"),
        **_numbers(drawn, panel),
    }


def _numbers(drawn: Figure, panel: Panel) -> dict[str, Any]:
    """The picture as a table: a line for each place along the first axis, a column for each series."""
    axes, looks = axes_of(panel), looks_of(drawn, panel)
    cells: dict[Any, dict[str, str]] = {}
    heads = []
    for series in panel.series:
        name = looks[series.name, series.mark == "dashed"].name
        heads.append(name)
        for row in series_rows(series, name, axes):
            ends = f" [{spoken(row['low'])}, {spoken(row['high'])}]" if row["low"] is not None else ""
            cells.setdefault(row["x"], {})[name] = spoken(row["y"]) + ends
    places = list(cells) if axes.names else sorted(cells)
    if len(places) > _MOST_LINES:
        places = [places[round(at * (len(places) - 1) / (_MOST_LINES - 1))] for at in range(_MOST_LINES)]
    side = [(place if axes.names else spoken(place), cells[place]) for place in places]
    return {"along": axes.x, "heads": list(dict.fromkeys(heads)), "lines": side, "of": len(cells)}


def _study(one: StudyRuns) -> dict[str, Any]:
    lines = {variant: variant_cells(runs) for variant, runs in one.variants.items()}
    data = ", ".join(dict.fromkeys(data_in_words(run) for run in one.runs))
    return {
        "name": one.name,
        "about": one.about,
        "scale": one.scale,
        "data": data,
        "minutes": one.gpu_minutes,
        "stopped": any(run.made.get("state") == "stopped" for run in one.runs),
        "lines": lines,
        "heads": list(next(iter(lines.values()))),
        "hardware": ", ".join(dict.fromkeys(str(run.made.get("hardware") or "–") for run in one.runs)),
        "commits": ", ".join(dict.fromkeys(words.commit(run.made) for run in one.runs)),
    }
