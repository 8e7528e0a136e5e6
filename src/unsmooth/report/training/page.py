"""The page of a training as one HTML file, which opens from disk and never asks a network for anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unsmooth.numbers import spoken
from unsmooth.report.html import manifest_rows
from unsmooth.report.series import printable
from unsmooth.report.shell import PAGE_FONT, page_html, resource, script_json, write_page
from unsmooth.report.training import words
from unsmooth.report.training.board import Board, Limits, Subject
from unsmooth.report.training.draw import RAMPS
from unsmooth.report.training.figures import boards_of
from unsmooth.report.training.table import final_table
from unsmooth.report.training.variants import Variant, variants_of, what_ran
from unsmooth.report.why.page import pictures_data
from unsmooth.training.trained_run import TrainedRun

_LARGEST = 1_600_000  # bytes of data, beside the chart runtime and tables in words
# From everything to the least: a page must open everywhere.
_LEVELS = (Limits(800, 60), Limits(400, 40), Limits(200, 20), Limits(100, 10), Limits(60, 5))
# Boards that stand beside one another where each is a single picture.
_PAIRS = (("loss", "metrics"), ("similarity", "moments"), ("spectrum", "quantiles"), ("optimiser",))


def write_training_report(runs: Sequence[TrainedRun], path: str | Path) -> Path:
    """Write one self-contained page of all `runs` and return its path; it appears whole or not at all.

    Args:
        runs: As `read_run` gives them. Those that differ only by their seed are drawn as one.
        path: Where to write.
    """
    # File names may hold bytes that are no UTF-8, which Python keeps as half a surrogate pair.
    return write_page(path, training_html(runs))


def training_html(runs: Sequence[TrainedRun]) -> str:
    """The page as text."""
    variants = variants_of(runs)
    boards, data = _fitting(variants)
    return page_html(
        "training/training.html.j2",
        ["manifest.html.j2"],
        styles=("page.css", "training/training.css"),
        filters={"spoken": spoken, "manifest_rows": manifest_rows, "printable": printable},
        scripts=[resource("training/training.js")],
        variants=[_card(variant) for variant in variants],
        title=_title(variants),
        groups=_groups(boards),
        absent=_absent(boards),
        final=final_table(variants),
        runs=[(_run_name(run, len(runs) > 1), run) for run in runs],
        data=script_json(data),
        time=data["time"],
    )


def _fitting(variants: Sequence[Variant]) -> tuple[dict[str, Board], dict[str, Any]]:
    """Boards and their data, of long trainings less of them until it fits, as captions say."""
    for limits in _LEVELS:
        boards = boards_of(variants, limits)
        data = board_data(boards) | {"time": Subject(tuple(variants), limits).time}
        if len(json.dumps(data, separators=(",", ":"))) <= _LARGEST:
            break
    return boards, data


def board_data(boards: Mapping[str, Board]) -> dict[str, Any]:
    """What the script draws: charts and columns once each, and where every board finds its pictures."""
    figures = {name: list(board.panels.values()) for name, board in boards.items()}
    data = pictures_data([figures], PAGE_FONT)
    panels = data.pop("parts")[0]
    data["boards"] = {
        name: {
            "panels": panels[name],
            "places": board.places,
            "readings": board.readings,
            "pivot": [board.rows, board.columns, *board.cells],
        }
        for name, board in boards.items()
    }
    data["config"]["legend"] |= {"titleFontWeight": "normal", "titleFontSize": 12}
    data["ramps"] = RAMPS
    return data


def _card(variant: Variant) -> dict[str, Any]:
    notes = [
        (f"{run.folder.name}: " if len(variant.runs) > 1 else "") + note for run in variant.runs for note in run.notes
    ]
    return {
        "name": variant.name,
        "colour": variant.colour,
        "sentence": words.sentence_of(variant),
        "banners": words.banners_of(variant),
        "facts": words.facts_of(variant),
        "notes": [printable(note) for note in notes],
    }


def _title(variants: Sequence[Variant]) -> str:
    if len(variants) == 1:
        return variants[0].name
    shared = {what_ran(run).split(" with ")[0] for variant in variants for run in variant.runs}
    count = f"{len(variants)} variants"
    return f"{shared.pop()}, {count}" if len(shared) == 1 and all(shared) else count


def _groups(boards: Mapping[str, Board]) -> list[list[Board]]:
    """Boards in the order of the page; small ones in pairs."""
    groups = []
    for names in _PAIRS:
        found = [boards[name] for name in names if name in boards]
        wide = any(board.beside and len(board.subjects) > 1 for board in found)
        groups += [[board] for board in found] if wide else [found]
    return [group for group in groups if group]


def _absent(boards: Mapping[str, Board]) -> list[str]:
    """Sentences for what no run has."""
    said = {
        "loss": "No loss was logged.",
        "metrics": "No evaluation metric was logged besides the loss.",
        "similarity": "No scan was taken, so nothing is known of token similarity.",
        "spectrum": "No spectra were measured.",
    }
    return [sentence for name, sentence in said.items() if name not in boards]


def _run_name(run: TrainedRun, several: bool) -> str:
    place = run.folder.resolve()
    return printable(f"{place.parent.name}/{place.name}" if several else place.name)
