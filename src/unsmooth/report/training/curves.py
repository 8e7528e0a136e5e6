"""Boards of lines: losses, metrics, the optimiser, and layer curves at three moments."""

from __future__ import annotations

from unsmooth.report.series import PALETTE, printable
from unsmooth.report.training import draw, rows, words
from unsmooth.report.training.board import Board, Subject, present
from unsmooth.report.training.variants import Variant
from unsmooth.report.why.panels import Picture

_OPTIMISER = {"lr": "learning rate", "gradient_norm": "gradient norm", "samples_per_second": "samples per second"}
_FULL = 3  # variants that each have all points of a line; more of them share


def loss_board(subject: Subject) -> Board:
    """Training and evaluation loss: of one variant told apart by colour, of several by dashes."""
    alone = len(subject.variants) == 1
    steady, sparse = _lines(subject, "training", "loss"), _lines(subject, "evaluations", "loss")
    for kind, found in (("training", steady), ("evaluation", sparse)):
        for row in found:
            row |= {"kind": kind, "line": kind if alone else row["line"]}
    looks = (("training", PALETTE[0]), ("evaluation", PALETTE[1])) if alone else subject.looks
    panel = _panel(subject, "loss", steady, sparse, looks)
    return Board("loss", "Loss", present([((0, 0), panel)]), subject.time, "line", ("mean",))


def metrics_board(subject: Subject) -> Board:
    """Whatever evaluations measured besides the loss."""
    names = words.metrics_of(subject.variants)
    titles = tuple(printable(name.replace("_", " ")) for name in names)
    looks = ((subject.names[0], PALETTE[1]),) if len(subject.variants) == 1 else subject.looks
    panels = [
        ((0, place), _panel(subject, titles[place], [], _lines(subject, "evaluations", name), looks))
        for place, name in enumerate(names)
    ]
    drawn = present(panels)
    return Board("metrics", "Evaluation", drawn, subject.time, "line", ("mean",), "Quantity", titles)


def optimiser_board(subject: Subject) -> Board:
    """Learning rate, gradient norm and speed, beside one another."""
    panels = [
        _panel(subject, title, _lines(subject, "training", name), [], subject.looks, small=True)
        for name, title in _OPTIMISER.items()
    ]
    kept = [panel for panel in panels if panel is not None]
    titles = tuple(panel.title for panel in kept)
    drawn = {(place, 0): panel for place, panel in enumerate(kept)}
    reading = "Colours are those of the losses." if len(subject.variants) > 1 else ""
    return Board("optimiser", "Optimiser", drawn, subject.time, "line", ("mean",), subjects=titles, reading=reading)


def moments_board(subject: Subject) -> Board:
    """Layer curves of every metric at the start, in the middle and at the end."""
    pairs = words.measured_pairs(subject.variants)
    panels = present(((0, place), _moments(subject, metric, site)) for place, (metric, site) in enumerate(pairs))
    titles = tuple(words.pair_title(*pair) for pair in pairs)
    heading = "Layer curves: start, middle, end"
    reading = words.MOMENTS_READING
    return Board("moments", heading, panels, "layer", "moment", ("value",), "Metric", titles, reading=reading)


def _lines(subject: Subject, source: rows.Source, name: str) -> rows.Rows:
    most, count = subject.limits.points, len(subject.variants)
    most = most if count <= _FULL else max(60, most * _FULL // count)
    return [row for one in subject.variants for row in rows.curve_rows(one, source, name, one.name, most)]


def _panel(
    subject: Subject, title: str, steady: rows.Rows, sparse: rows.Rows, looks: draw.Looks, small: bool = False
) -> Picture | None:
    found = {"steady": steady, "sparse": sparse}
    tables = {name: table for name, table in found.items() if any(row["mean"] is not None for row in table)}
    if not tables:
        return None
    if rows.has_band(steady + sparse):
        tables["band"] = [row for row in steady + sparse if row["low"] is not None]
    parts = [_bins_caption(subject, steady), _band_caption(subject) if "band" in tables else ""]
    caption = " ".join(filter(None, parts))
    options = (title, subject.time, looks, not small)
    return Picture(title, title, caption, tables, draw.draw_curves, 200 if small else 320, options=options)


def _bins_caption(subject: Subject, steady: rows.Rows) -> str:
    logged = max((len(run.training) for variant in subject.variants for run in variant.runs), default=0)
    widest = max((row["count"] for row in steady), default=1)
    return f"Points are means of {widest} lines of the log, which has {logged:,}." if widest > 1 else ""


def _band_caption(subject: Subject) -> str:
    spread = [variant for variant in subject.variants if variant.spread]
    if not spread:
        return "Band: from the smallest to the largest of them."
    return "Of several seeds the line is the mean, and the band reaches from the smallest to the largest."


def _moments(subject: Subject, metric: str, site: str) -> Picture | None:
    found = [row for variant in subject.variants for row in _moment_rows(subject, variant, metric, site)]
    if not any(row["value"] is not None for row in found):
        return None
    tables = {"curves": found}
    ends = [row for row in found if row["moment"] == "end" and row.get("low") is not None]
    steps = {row["moment"]: f"{row['moment']}: step {row['step']:,}" for row in found}
    caption = ("; ".join(steps.values()) + ".").capitalize() if len(subject.variants) == 1 else ""
    if any(row["low"] < row["high"] for row in ends):
        tables["band"] = ends
        caption += " Lines are means over seeds; the band at the end reaches from the smallest to the largest."
    title = words.pair_title(metric, site)
    return Picture(title, title, caption.strip(), tables, draw.draw_moments, 320, options=(title, subject.looks))


def _moment_rows(subject: Subject, variant: Variant, metric: str, site: str) -> rows.Rows:
    epochs = {one.step: one.epoch for run in variant.runs for one in run.measurements}
    times = rows.times_of(epochs, subject.limits.times)
    return rows.moment_rows(variant, rows.similarity_grids(variant, metric, site), times)
