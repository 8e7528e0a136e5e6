"""Boards of maps and bands over training time: similarity by layer, and the spectrum of H."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unsmooth.report.series import printable
from unsmooth.report.training import draw, rows, words
from unsmooth.report.training.board import Board, Key, Subject, present
from unsmooth.report.training.variants import Variant
from unsmooth.report.why.panels import Picture

_ROW_HEIGHT, _LOWEST, _HIGHEST = 24, 180, 440
_RAMPS = {"negative_share": "diverging"}
Epochs = Mapping[int, float | None]


@dataclass(frozen=True)
class _Look:
    """How a quantity is coloured, and what is said of it."""

    title: str
    domain: tuple[float, float]
    ramp: str
    reading: str


def similarity_board(subject: Subject) -> Board:
    """Every metric of the scans over layers and time."""
    pairs = words.measured_pairs(subject.variants)
    panels: dict[Key, Picture] = {}
    for choice, (metric, site) in enumerate(pairs):
        grids = [rows.similarity_grids(variant, metric, site) for variant in subject.variants]
        domain = similarity_domain(_values(grids))
        look = _Look(words.pair_title(metric, site), domain, "heatmap", _definition(subject, metric))
        epochs = [_scan_epochs(variant) for variant in subject.variants]
        panels |= {(place, choice): panel for place, panel in _maps(subject, grids, epochs, look).items()}
    titles = tuple(words.pair_title(*pair) for pair in pairs)
    heading = "Token similarity over training"
    names = subject.names
    return Board(
        "similarity", heading, panels, "layer", "time", ("value",), "Metric", titles, names, words.SIMILARITY_READING
    )


def spectrum_board(subject: Subject) -> Board:
    """Asymmetry, share of negative real parts, spectral radius and norm of H over layers and time."""
    panels: dict[Key, Picture] = {}
    for choice, (name, (title, reading)) in enumerate(words.SPECTRA.items()):
        grids = [rows.spectrum_grids(variant, name) for variant in subject.variants]
        look = _Look(title, spectrum_domain(name, _values(grids)), _RAMPS.get(name, "heatmap"), reading)
        epochs = [_spectrum_epochs(variant) for variant in subject.variants]
        drawn = _maps(subject, grids, epochs, look)
        panels |= {(place, choice): panel for place, panel in drawn.items()}
    titles = tuple(title for title, _ in words.SPECTRA.values())
    heading = "Spectrum of H over training"
    names = subject.names
    return Board(
        "spectrum", heading, panels, "layer", "time", ("value",), "Quantity", titles, names, words.SPECTRUM_READING
    )


def quantiles_board(subject: Subject) -> Board:
    """Where the real parts of eigenvalues lie, layer by layer."""
    runs = [run for variant in subject.variants for run in variant.runs]
    layers = sorted({place[1] for run in runs for place, _ in rows.spectrum_layers(run.spectra)})
    found = {
        (place, choice): rows.quantile_rows(variant, layer, _spectrum_epochs(variant))
        for place, variant in enumerate(subject.variants)
        for choice, layer in enumerate(layers)
    }
    every = [row for table in found.values() for row in table]
    ends = [0.0, *(row[name] for row in every for name in rows.QUANTILES if row[name] is not None)]
    domain = (min(ends), max(ends))
    panels = present(
        (key, _bands(subject, subject.variants[key[0]], layers[key[1]], table, domain)) for key, table in found.items()
    )
    titles = tuple(f"layer {layer}" for layer in layers)
    heading = "Real parts of the eigenvalues of H"
    names = subject.names
    return Board(
        "quantiles", heading, panels, subject.time, "", rows.QUANTILES, "Layer", titles, names, words.QUANTILE_READING
    )


def _maps(
    subject: Subject, grids: Sequence[Sequence[rows.Grid]], epochs: Sequence[Epochs], look: _Look
) -> dict[int, Picture]:
    """The map of every variant that was measured."""
    made = ((place, _map(subject, place, grids[place], epochs[place], look)) for place in range(len(grids)))
    return {place: panel for place, panel in made if panel is not None}


def _map(subject: Subject, place: int, grids: Sequence[rows.Grid], epochs: Epochs, look: _Look) -> Picture | None:
    variant = subject.variants[place]
    steps = {step for grid in grids for step, _ in grid}
    times = rows.times_of({step: epochs.get(step) for step in steps}, subject.limits.times)
    cells = rows.grid_rows(grids, times)
    if not any(cell["value"] is not None for cell in cells):
        return None
    parts = []
    if len(times.labels) < len(steps):
        parts.append(f"Shown: {len(times.labels)} of {len(steps)} measurements, evenly chosen.")
    if variant.spread:
        parts.append(f"Mean over {variant.spread}.")
    height = max(_LOWEST, min(_HIGHEST, _ROW_HEIGHT * len({cell["layer"] for cell in cells})))
    options = (look.title, times.unit, look.domain, look.ramp, len(variant.runs) > 1)
    title = f"{look.title}, {variant.name}"
    tables, caption = {"cells": cells}, " ".join(parts)
    return Picture(title, look.title, caption, tables, draw.draw_heat, height, reading=look.reading, options=options)


def _bands(
    subject: Subject, variant: Variant, layer: int, table: rows.Rows, domain: tuple[float, float]
) -> Picture | None:
    if not table:
        return None
    title = f"real part, layer {layer}"
    caption = f"Means over {variant.spread} of each quantile." if variant.spread else ""
    tables = {"quantiles": table, "zero": [{"zero": 0}]}
    options = (title, subject.time, domain)
    return Picture(f"{title}, {variant.name}", title, caption, tables, draw.draw_quantiles, 260, options=options)


def similarity_domain(values: Sequence[float]) -> tuple[float, float]:
    """Where colours begin and end: from 0 to a round share for what lies there, else from lowest to highest.

    >>> similarity_domain([0.1, 0.34]), similarity_domain([-0.1, 0.9]), similarity_domain([3.0, 11.5])
    ((0.0, 0.5), (-0.1, 1.0), (3.0, 11.5))
    """
    if not values:
        return (0.0, 1.0)
    low, high = min(values), max(values)
    if low >= -1 and high <= 1:
        return (min(0.0, low), next(top for top in (0.1, 0.2, 0.5, 1.0) if high <= top))
    return (low, high if high > low else low + 1)


def spectrum_domain(name: str, values: Sequence[float]) -> tuple[float, float]:
    """Where colours begin and end; of shares, as far from a half on either side, so that a half is neutral.

    >>> spectrum_domain("negative_share", [0.45, 0.68]), spectrum_domain("asymmetry", [0.7])
    ((0.3, 0.7), (0.0, 1.0))
    """
    if name in ("spectral_radius", "norm"):
        return (0.0, ceiling(max(values, default=1.0)))
    if name != "negative_share":
        return (0.0, 1.0)
    widest = max((abs(value - 0.5) for value in values), default=0.5)
    reach = next((reach for reach in (0.1, 0.2, 0.3) if widest <= reach), 0.5)
    return (0.5 - reach, 0.5 + reach)


def ceiling(value: float) -> float:
    """The next number of one digit.

    >>> ceiling(1.32), ceiling(0.0)
    (2.0, 1.0)
    """
    if value <= 0:
        return 1.0
    unit = 10.0 ** int(f"{value:e}".split("e")[1])
    return -(-value // unit) * unit


def _definition(subject: Subject, metric: str) -> str:
    runs = (run for variant in subject.variants for run in variant.runs)
    cards = (one.scan.metrics.get(metric) for run in runs for one in run.measurements)
    card = next((card for card in cards if card is not None), None)
    return f"{printable(metric)}: {printable(card.definition)}." if card else ""


def _scan_epochs(variant: Variant) -> Epochs:
    return {one.step: one.epoch for run in variant.runs for one in run.measurements}


def _spectrum_epochs(variant: Variant) -> Epochs:
    return {line["step"]: line.get("epoch") for run in variant.runs for line in run.spectra}


def _values(grids: Sequence[Sequence[rows.Grid]]) -> list[float]:
    return [value for several in grids for grid in several for value in grid.values() if value is not None]
