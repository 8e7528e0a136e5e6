"""A scan as a published definition asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import parse_metric
from unsmooth.models import Anatomy
from unsmooth.models.stacks import pattern_of
from unsmooth.presets import PRESETS, Preset
from unsmooth.presets.preset import BASES
from unsmooth.scanning.result import Change, MetricCard, Row, Scan
from unsmooth.scanning.sentence import one_sentence
from unsmooth.spec import checked, read


def find_preset(preset: str | Preset) -> Preset:
    """A preset by name, or itself."""
    if not isinstance(preset, str | Preset):
        raise expected("a preset by name, or an unsmooth.presets.Preset", repr(preset), 'preset="vita"')
    if isinstance(preset, Preset):
        return preset
    spec = read(preset, "a preset such as vita", "`unsmooth ls presets`")
    found = PRESETS[spec.name]
    checked(found.name, {}, spec.options)
    return found


def check_alone(preset: Preset, **untouched: bool) -> None:
    """Refuse settings beside a preset that it fixes itself."""
    for setting, left in untouched.items():
        if not left:
            hint = f"{setting} without a preset, or the preset without {setting}"
            raise expected(f"preset {preset.name!r} alone, which fixes {setting}", f"{setting} beside it", hint)


def check_fits(preset: Preset, stacks: Sequence[Anatomy]) -> None:
    """Refuse a preset whose definition means nothing for a stack of this model."""
    for stack in stacks:
        if (problem := misfit(preset, stack, several=len(stacks) > 1)) is not None:
            raise problem


def misfit(preset: Preset, stack: Anatomy, several: bool = False) -> UnsmoothError | None:
    """Why a preset does not fit a stack, None where it does as far as the model alone can tell."""
    if "class token" not in preset.needs or stack.prefix_tokens == 1:
        return None
    what = f"a model with one class token in front of its patches for preset {preset.name!r}"
    model = f"the {stack.stack} of {type(stack.model).__name__}" if several else type(stack.model).__name__
    hint = f"metrics={list(preset.metrics)} without a preset"
    if several:
        hint = f"a blocks pattern such as {pattern_of(next(iter(stack.blocks)))!r} that picks a stack with one"
    return expected(what, f"{model}, which puts {stack.prefix_tokens} tokens there", hint)


def as_published(scan: Scan, preset: Preset) -> Scan:
    """The scan with the preset's own curve first, and with what the definition rests on."""
    if scan.stacks:
        parts = tuple(as_published(part, preset) for part in scan.stacks)
        rows = tuple(row for part in parts for row in part.rows)
        sentence = " ".join(f"{part.stack.capitalize()}: {part.sentence}" for part in parts)
        whole = replace(scan, stacks=parts, rows=rows, metrics=parts[0].metrics, sentence=sentence)
    else:
        whole = _adjusted(scan, preset)
        whole = replace(whole, sentence=one_sentence(whole))
    baseline = None if scan.baseline is None else as_published(scan.baseline, preset)
    manifest: Mapping[str, Any] = {**scan.manifest, "preset": preset.describe()}
    return replace(whole, baseline=baseline, manifest=manifest, notes=(*scan.notes, *_notes(preset)))


def _notes(preset: Preset) -> list[str]:
    notes = [f"Preset {preset.name}: {preset.summary}; {BASES[preset.basis]}. {preset.source}."]
    return notes + [f"Not known: {what}." for what in preset.unknown]


def only(scan: Scan, preset: Preset, name: str) -> Scan:
    """Of a scan for several presets, what belongs to one."""
    metrics = [parse_metric(text).name for text in preset.measured]
    rows = tuple(row for row in scan.rows if row.metric in metrics and row.site in preset.sites)
    part = replace(
        scan,
        name=name,
        rows=rows,
        metrics={metric: scan.metrics[metric] for metric in metrics},
        sites={site: scan.sites[site] for site in scan.sites if site in preset.sites},
        changes={metric: change for metric, change in scan.changes.items() if metric in metrics},
        profiles=tuple(one for one in scan.profiles if one.metric in metrics and one.site in preset.sites),
    )
    return as_published(part, preset)


def _adjusted(scan: Scan, preset: Preset) -> Scan:
    """With the difference of two metrics as a metric of its own, where the preset is one."""
    if preset.minus is None:
        return scan
    first, other = parse_metric(preset.metrics[0]).name, parse_metric(preset.minus).name
    off = {(row.layer, row.site, row.stage): row.mean for row in scan.rows if row.metric == other}
    rows = [
        _shifted(row, preset.curve, off[place])
        for row in scan.rows
        if row.metric == first and (place := (row.layer, row.site, row.stage)) in off
    ]
    changes = dict(scan.changes)
    if first in changes and other in changes:
        changes = {preset.curve: _less(changes[first], changes[other].mean), **changes}
    cards = {preset.curve: _difference(scan.metrics[first], scan.metrics[other], preset.curve), **scan.metrics}
    return replace(scan, rows=(*rows, *scan.rows), metrics=cards, changes=changes)


def _shifted(row: Row, metric: str, by: float) -> Row:
    return replace(row, metric=metric, mean=row.mean - by, ci_low=row.ci_low - by, ci_high=row.ci_high - by)


def _less(change: Change, by: float) -> Change:
    return replace(change, mean=change.mean - by, ci_low=change.ci_low - by, ci_high=change.ci_high - by)


def _difference(first: MetricCard, other: MetricCard, name: str) -> MetricCard:
    return replace(
        first,
        name=name,
        definition=f"{first.definition}; less: {other.definition}",
        chance=None,
        chance_note="none for the difference",
        rises_when_alike=None,
    )
