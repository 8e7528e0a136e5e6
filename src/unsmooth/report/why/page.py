"""The Why part of the page: what its template and its script are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from unsmooth.report.series import unique
from unsmooth.report.shell import import_extra
from unsmooth.report.why.figures import why_config
from unsmooth.report.why.panels import Figures, Limits, Picture
from unsmooth.report.why.rows import LOOKS, Look
from unsmooth.report.why.words import stack_in_words

if TYPE_CHECKING:
    import altair

    from unsmooth.explaining.result import Explanation

# From everything to the least, in points of clouds and letters of reasons over all explanations of a page.
_LEVELS = ((60_000, 400_000, True), (24_000, 100_000, True), (10_000, 0, True), (4_000, 0, False))


@dataclass(frozen=True)
class Part:
    """One explanation on the page."""

    name: str
    explanation: Explanation
    figures: Mapping[str, Sequence[Picture]]

    @property
    def growth(self) -> str | None:
        """The growth over the stack in words; None without data."""
        return None if self.explanation.growth is None else stack_in_words(self.explanation.growth)

    @property
    def verdicts_missing(self) -> str:
        """Why no verdict is drawn."""
        from unsmooth.explaining.words import verdicts_judged  # brings torch, which no import of the report waits for

        return verdicts_judged(self.explanation.skills) if self.explanation.layers else "No layer was explained."

    def look(self, verdict: str) -> Look:
        """Sign and colour of a verdict."""
        return LOOKS[verdict]


def parts_of(explanations: Sequence[Explanation], font: str, budget: int) -> tuple[list[Part], dict[str, Any]]:
    """Every explanation, by stack, with its pictures, and what the script draws them from, in about `budget` bytes.

    Of large models less is drawn, as captions say, until it fits: a page must open everywhere.
    """
    explanations = [part for one in explanations for part in one.parts]
    layers = max(1, sum(len(one.layers) for one in explanations))
    for points, letters, heads in _LEVELS:
        limits = Limits(max(20, points // layers), letters // max(1, len(explanations)), heads)
        taken: set[str] = set()
        parts = [Part(unique(one.name, taken), one, Figures(one, limits).panels()) for one in explanations]
        data = part_data(parts, font)
        if len(json.dumps(data, separators=(",", ":"))) <= budget:
            break
    return parts, data


def part_data(parts: Sequence[Part], font: str) -> dict[str, Any]:
    """What the script draws of every part."""
    return pictures_data([part.figures for part in parts], font)


def pictures_data(parts: Sequence[Mapping[str, Sequence[Picture]]], font: str) -> dict[str, Any]:
    """What a script draws: every chart once without its data, every column once, and which panel uses which."""
    specs: dict[str, int] = {}
    columns: dict[str, int] = {}
    drawn = [
        {name: [_panel_data(panel, specs, columns) for panel in panels] for name, panels in figures.items() if panels}
        for figures in parts
    ]
    config = why_config("currentColor", "currentColor", "transparent", font=font)
    config["axis"].update(gridOpacity=0.12, domainOpacity=0.5, tickOpacity=0.5)
    config["text"]["opacity"] = config["rule"]["opacity"] = 0.65
    # Vega's, which Vega-Lite hands on though its schema does not know it: legends stand below one another.
    config["legend"]["layout"] = {"bottom": {"direction": "vertical", "anchor": "start"}}
    return {"config": config, "specs": _loaded(specs), "columns": _loaded(columns), "parts": drawn}


def _loaded(texts: Mapping[str, int]) -> list[Any]:
    return [json.loads(text) for text in texts]


def _panel_data(panel: Picture, specs: dict[str, int], columns: dict[str, int]) -> dict[str, Any]:
    return {
        "spec": specs.setdefault(_spec(panel.drawing, panel.options, tuple(panel.tables)), len(specs)),
        "title": panel.title,
        "caption": panel.caption,
        "height": panel.height,
        "least": panel.least,
        "tables": {
            name: {field: _column([row[field] for row in rows], columns) for field in rows[0]}
            for name, rows in panel.tables.items()
        },
    }


@cache
def _spec(drawing: Callable[..., altair.LayerChart], options: tuple[Any, ...], tables: tuple[str, ...]) -> str:
    """A chart without data; kept, since Altair checks every chart against the whole schema and takes its time."""
    alt = import_extra("altair")
    spec = drawing(*options, {name: alt.NamedData(name=name) for name in tables}).to_dict()
    return json.dumps({name: value for name, value in spec.items() if name != "config"}, sort_keys=True)


def _column(values: list[Any], columns: dict[str, int]) -> int:
    """The place of a column among all `columns`; words that repeat are written once.

    >>> kept = {}
    >>> _column([1, 2], kept), _column(["a", "a", "a"], kept), _column([1, 2], kept)
    (0, 1, 0)
    >>> list(kept)
    ['[1, 2]', '{"words": ["a"], "at": [0, 0, 0]}']
    """
    words = {value: place for place, value in enumerate(dict.fromkeys(values)) if isinstance(value, str)}
    coded = {"words": list(words), "at": [words[value] for value in values]} if 0 < len(words) < len(values) else values
    return columns.setdefault(json.dumps(coded), len(columns))
