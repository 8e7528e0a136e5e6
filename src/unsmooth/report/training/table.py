"""The final numbers of every run, as a table for the page and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unsmooth.numbers import spoken
from unsmooth.report.series import printable
from unsmooth.report.training import words
from unsmooth.report.training.rows import finite
from unsmooth.report.training.variants import Variant, variants_of
from unsmooth.training.trained_run import TrainedRun


@dataclass(frozen=True)
class Table:
    """Headings, and lines of cells, each with whether it sums up the seeds above it."""

    headings: tuple[str, ...]
    lines: tuple[tuple[bool, tuple[str, ...]], ...]


def final_table(variants: Sequence[Variant]) -> Table:
    """The last numbers of every run, and mean ± standard deviation of runs that differ by seed."""
    records = {id(run): final_numbers(run) for variant in variants for run in variant.runs}
    names = list(dict.fromkeys(name for record in records.values() for name in record))
    told = any(run.seed is not None for variant in variants for run in variant.runs)
    headings = ("run", *(["seed"] if told else []), *(printable(name.replace("_", " ")) for name in names), "time")
    lines = []
    for variant in variants:
        for run in variant.runs:
            cells = [_cell(records[id(run)].get(name)) for name in names]
            first = (variant.name, *(["–" if run.seed is None else printable(run.seed)] if told else []))
            lines.append((False, (*first, *cells, words.duration(run.manifest.get("seconds")))))
        if variant.spread:
            columns = [[finite(records[id(run)].get(name)) for run in variant.runs] for name in names]
            means = [words.mean_and_spread([one for one in column if one is not None]) for column in columns]
            means[names.index("steps")] = ""
            first = (variant.name, *(["mean ± s.d."] if told else []))
            lines.append((True, (*first, *means, "")))
    return Table(headings, tuple(lines))


def brief_table(variants: Sequence[Variant]) -> Table:
    """A line for each variant, narrow enough for a terminal: loss, first metric, similarity before and after."""
    records = [[final_numbers(run) for run in variant.runs] for variant in variants]
    found = dict.fromkeys(name for group in records for record in group for name in record)
    similarity = (name for name in found if name.endswith(("_start", "_end")))
    wanted = ["evaluation_loss", *words.metrics_of(variants)[:1], *similarity]
    names = [name for name in wanted if name in found]
    lines = []
    for variant, group in zip(variants, records, strict=True):
        columns = [[value for record in group if (value := finite(record.get(name))) is not None] for name in names]
        lines.append((False, (variant.name, str(len(group)), *map(words.mean_and_spread, columns))))
    return Table(("run", "seeds", *(printable(name.replace("_", " ")) for name in names)), tuple(lines))


def final_numbers(run: TrainedRun) -> dict[str, float | int | None]:
    """Steps, last losses and metrics, and the similarity that leaves the last layer at the start and at the end."""
    found: dict[str, float | int | None] = {"steps": words.last_step(run)}
    found["training_loss"] = words.final_training_loss(run)
    last = run.evaluations[-1] if run.evaluations else {}
    found["evaluation_loss"] = finite(last.get("loss"))
    found |= {name: finite(last.get(name)) for name in run.metrics}
    pairs = words.measured_pairs([Variant("", "", (run,))])
    if pairs:
        metric, site = pairs[0]
        found[f"{metric}_start"] = words.last_layer(run.measurements[0], metric, site)
        found[f"{metric}_end"] = words.last_layer(run.measurements[-1], metric, site)
    return found


def summary(runs: Sequence[TrainedRun]) -> list[dict[str, Any]]:
    """What the command prints as JSON: every run with its variant, state, final numbers and notes."""
    return [
        {
            "run": str(run.folder),
            "variant": variant.name,
            "sentence": words.sentence_of(variant),
            "recipe": run.setting("recipe"),
            "size": run.setting("size"),
            "seed": run.seed,
            "remedies": list(run.remedies),
            "data": run.data.get("name"),
            "synthetic": run.data.get("synthetic"),
            "state": run.state or None,
            "seconds": finite(run.manifest.get("seconds")),
            "final": final_numbers(run),
            "notes": list(run.notes),
        }
        for variant in variants_of(runs)
        for run in variant.runs
    ]


def _cell(value: float | int | None) -> str:
    return f"{value:,}" if isinstance(value, int) else spoken(value)
