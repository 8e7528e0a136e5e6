"""From sums to a `Scan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from unsmooth.errors import expected
from unsmooth.functional import BoundMetric
from unsmooth.models import SITES, Anatomy, origin_of
from unsmooth.models.host import TEXT
from unsmooth.scanning.chance import chance_level, rounding_level
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import Source
from unsmooth.scanning.gathering import MAPS, MAPS_MEANING, MapSums
from unsmooth.scanning.manifest import (
    cut_note,
    describe_data,
    describe_definitions,
    describe_model,
    describe_versions,
    now,
)
from unsmooth.scanning.plan import Plan
from unsmooth.scanning.ranks import world
from unsmooth.scanning.result import Change, Confound, MetricCard, Row, Scan
from unsmooth.scanning.sentence import one_sentence
from unsmooth.scanning.statistics import Place, RunningSums, Summary
from unsmooth.scanning.together import together

# A scan has a site of its own beside those of a model's blocks.
_SITES = {**SITES, MAPS: MAPS_MEANING}


def assemble(
    watched: Sequence[tuple[Anatomy, Collector]],
    model: nn.Module,
    source: Source,
    digests: Sequence[bytes],
    plan: Plan,
    tokenizer: Any | None,
    weights: str | None,
) -> Scan:
    """Read the numbers of every stack off its sums and put their definitions beside them."""
    ran = [(anatomy, collector, collector.state) for anatomy, collector in watched if collector.state is not None]
    if not ran:
        raise expected("at least one batch of data", "none", "data that is not empty")
    name = plan.name or model_name(model)
    unread = tuple(not_run(anatomy) for anatomy, collector in watched if collector.state is None)
    if long := [one for one in ran if one[2].length_counts()]:
        unread += tuple(f"The {one[0].stack} stack has fewer than two tokens." for one in ran if one not in long)
        ran = long
    parts = [_of_stack(anatomy, collector, state, model, plan, tokenizer) for anatomy, collector, state in ran]
    _check_fit(plan.metrics, parts)
    unread += tuple(f"No metric asked for fits the {part.stack} stack." for part in parts if not part.rows)
    parts = [part for part in parts if part.rows]
    sites = {site: meaning for site, meaning in _SITES.items() if any(site in part.sites for part in parts)}
    counts = [state.length_counts() for *_, state in ran]
    sequences = max(sum(lengths.values()) for lengths in counts)
    tokens = sum(length * count for lengths in counts for length, count in lengths.items())
    manifest: dict[str, Any] = {
        "created": now(),
        "model": describe_model([anatomy for anatomy, *_ in ran], model, ran[0][1].device, weights),
        "data": describe_data(source, digests, sequences, tokens),
        "definitions": describe_definitions(plan.metrics, sites, plan.tokens),
        "versions": describe_versions(),
        "seed": plan.seed,
        "processes": world()[1],
    }
    named = [
        replace(
            part,
            name=f"{name} · {part.stack}" if part.stack and len(watched) > 1 else name,
            manifest=manifest,
            notes=(*part.notes, *cut_note(manifest["data"]), *unread),
        )
        for part in parts
    ]
    return together(name, [replace(part, sentence=one_sentence(part)) for part in named], manifest)


def _of_stack(
    anatomy: Anatomy, collector: Collector, state: RunningSums, model: nn.Module, plan: Plan, tokenizer: Any | None
) -> Scan:
    if not state.length_counts():
        raise expected(
            f"at least one sequence of two or more tokens{f' in the {anatomy.stack}' if anatomy.stack else ''}",
            f"{int(state.short)} shorter ones",
            'longer texts, or tokens="all" to count special tokens too',
        )
    rows = tuple(replace(row, stack=anatomy.stack) for row in rows_of(collector, state, plan.metrics))
    profiles = (profile for gathering in collector.gatherings for profile in gathering.profiles())
    cards = {metric.name: _card(metric, collector, state) for metric in plan.metrics}
    return Scan(
        name="",
        rows=rows,
        metrics=cards,
        sites={site: meaning for site, meaning in _SITES.items() if any(row.site == site for row in rows)},
        manifest={},
        changes=_changes(collector, state, plan.metrics),
        profiles=tuple(replace(profile, stack=anatomy.stack) for profile in profiles),
        confounds=_confounds(collector, tokenizer),
        notes=_notes(collector, state, model) + _rounding_notes(collector, rows, cards),
        healthy=not bool(state.nonfinite.any()),
        stack=anatomy.stack,
    )


def _check_fit(metrics: Sequence[BoundMetric], parts: Sequence[Scan]) -> None:
    """Refuse a metric that fits none of several stacks; one stack is asked after its first batch."""
    for metric in metrics:
        measured = any(row.metric == metric.name for part in parts for row in part.rows)
        if not measured and metric.metric.reads in ("grid", "words", "attention"):
            names = " and ".join(part.stack for part in parts)
            raise expected(
                f"a stack that {metric.name} fits", f"{names or 'none'} alone", "other data or another metric"
            )


def not_run(anatomy: Anatomy) -> str:
    """What a reader must know of a stack that the data does not reach."""
    missing = f": the data has no {anatomy.reads.tokens!r}" if anatomy.is_known or anatomy.reads != TEXT else ""
    return f"The {anatomy.stack} stack was not run{missing}."


def model_name(model: nn.Module) -> str:
    """What its maker calls the model, else its class."""
    origin = origin_of(model)
    return (origin.id if origin else "") or type(model).__name__


def rows_of(collector: Collector, state: RunningSums, metrics: Sequence[BoundMetric]) -> tuple[Row, ...]:
    """Every number by site and layer."""
    rows = []
    tokens_K, own = [int(count) for count in state.tokens.tolist()], state.summaries()
    for index, place in enumerate(collector.places):
        for number, metric in enumerate(metrics):
            across = _across(collector, metric, place)
            found = across or own[index][number]
            # A pair metric has no value at its first layer; a layer of NaN keeps its row, to be seen.
            shown = metric.metric.reads == "tokens" or (metric.metric.reads == "grid" and collector.has_grid)
            if found.sequences or across is not None or shown:
                rows.append(_row(place, metric, found, tokens_K[index]))
    for maps in collector.gatherings:
        if isinstance(maps, MapSums):
            rows += [_row(place, metric, found, tokens) for place, metric, found, tokens in maps.rows()]
    order = list(_SITES)
    return tuple(sorted(rows, key=lambda row: (order.index(row.site), row.layer)))


def _across(collector: Collector, metric: BoundMetric, place: Place) -> Summary | None:
    """The number of a metric across sequences, None for the others."""
    found = (gathering.summary(metric, place) for gathering in collector.gatherings if metric in gathering.metrics)
    return next((summary for summary in found if summary is not None), None)


def _row(place: Place, metric: BoundMetric, found: Summary, tokens: int) -> Row:
    numbers = (found.mean, found.std, found.low, found.high, found.sequences, tokens)
    return Row(place.layer, place.site, metric.name, *numbers, stage=place.stage)


def _card(metric: BoundMetric, collector: Collector, state: RunningSums) -> MetricCard:
    declared = metric.metric
    stages = enumerate(collector.dims)
    chances = {chance_level(metric, state.length_counts(stage), dim) for stage, dim in stages}
    differs = len(chances) > 1
    return MetricCard(
        name=metric.name,
        definition=metric.definition,
        paper=declared.paper,
        cost=declared.cost,
        chance=None if differs else chances.pop(),
        chance_note=f"{declared.chance_note}; differs between stages" if differs else declared.chance_note,
        degenerate=declared.degenerate,
        rises_when_alike=declared.rises_when_alike,
        unit=declared.unit,
        rounding=None if collector.dtype is None else rounding_level(metric, collector.dtype, max(collector.dims)),
    )


def _changes(collector: Collector, state: RunningSums, metrics: Sequence[BoundMetric]) -> dict[str, Change]:
    if collector.ends is None:
        return {}
    first, last = (collector.places[index] for index in collector.ends)
    changes = {}
    for number, metric in enumerate(metrics):
        gathered = (one.change(metric, first, last) for one in collector.gatherings if metric in one.metrics)
        item = next((change for change in gathered if change is not None), None) or state.change(number)
        changes[metric.name] = Change(item.mean, item.low, item.high, item.sequences)
    return changes


def _confounds(collector: Collector, tokenizer: Any | None) -> tuple[Confound, ...]:
    if collector.confounds is None:
        return ()

    def text_of(token: int) -> str | None:
        return None if tokenizer is None else str(tokenizer.decode([token]))

    layers = [place.layer for place in collector.places if place.site == "residual"]
    return tuple(collector.confounds.confound(index, layer, text_of) for index, layer in enumerate(layers))


def _rounding_notes(collector: Collector, rows: Sequence[Row], cards: Mapping[str, MetricCard]) -> tuple[str, ...]:
    """Which curves come down to what rounding alone would give."""
    notes = []
    for name, card in cards.items():
        low = [row for row in rows if row.metric == name and card.is_rounding(row.mean)]
        if low:
            kind = str(collector.dtype).removeprefix("torch.")
            where = "" if len(low) == 1 else f" and {len(low) - 1} more"
            notes.append(
                f"{name} at layer {low[0].layer} ({low[0].site}){where} is down to the rounding of {kind} activations, "
                f"which alone gives {card.rounding:.1e}: read it as no more than that."
            )
    return tuple(notes)


def _notes(collector: Collector, state: RunningSums, model: nn.Module) -> tuple[str, ...]:
    origin = origin_of(model)
    notes = list(origin.notes) if origin else []
    sequences = sum(state.length_counts().values())
    if state.short:
        notes.append(f"{int(state.short)} sequences of fewer than two tokens were left out.")
    if state.nonfinite.any():
        index = int(state.nonfinite.ne(0).nonzero()[0])
        place, batch = collector.places[index], int(state.first_nonfinite[index])
        notes.append(
            f"NaN or Inf activations: first at layer {place.layer} ({place.site}) in batch {batch} (counted from 0); "
            f"up to {int(state.nonfinite.max())} of {sequences} sequences are left out of the layers they reach."
        )
    if state.zero_tokens.any():
        index = int(state.zero_tokens.argmax())
        place = collector.places[index]
        notes.append(
            f"{int(state.zero_tokens[index])} of {int(state.tokens[index])} tokens are exactly zero at layer "
            f"{place.layer} ({place.site}); they count as cosine 0."
        )
    everywhere = [number for number, metric in enumerate(collector.metrics) if metric.metric.reads == "tokens"]
    counts = state.count[:, everywhere]
    undefined = int((counts.max(dim=1, keepdim=True).values - counts).max()) if everywhere else 0
    if undefined:
        notes.append(f"Up to {undefined} sequences have no finite value of some metric and are left out of it.")
    notes += [note for gathering in collector.gatherings for note in gathering.notes()]
    notes += collector.notes
    if len(collector.dims) > 1:
        notes.append(
            f"{len(collector.dims)} stages: between them the number of tokens or their width changes, so curves may "
            "jump there and no layer is compared with one of another stage."
        )
    return tuple(notes)
