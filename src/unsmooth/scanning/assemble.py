"""From sums to a `Scan`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from unsmooth.errors import expected
from unsmooth.functional import BoundMetric
from unsmooth.models import SITES, Anatomy, origin_of
from unsmooth.scanning.chance import chance_level
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import Source
from unsmooth.scanning.manifest import describe_data, describe_definitions, describe_model, describe_versions, now
from unsmooth.scanning.plan import Plan
from unsmooth.scanning.ranks import world
from unsmooth.scanning.result import Change, Confound, MetricCard, Row, Scan
from unsmooth.scanning.sentence import one_sentence
from unsmooth.scanning.statistics import ScanState


def assemble(
    collector: Collector,
    anatomy: Anatomy,
    model: nn.Module,
    source: Source,
    digests: Sequence[bytes],
    plan: Plan,
    tokenizer: Any | None,
) -> Scan:
    """Read the numbers off the sums and put their definitions beside them."""
    state = collector.state
    if state is None:
        raise expected("at least one batch of data", "none", "data that is not empty")
    lengths = state.length_counts()
    if not lengths:
        raise expected(
            "at least one sequence of two or more tokens",
            f"{int(state.short)} shorter ones",
            'longer texts, or tokens="all" to count special tokens too',
        )
    sites = {site: SITES[site] for site in SITES if any(place.site == site for place in collector.places)}
    sequences, tokens = sum(lengths.values()), sum(length * count for length, count in lengths.items())
    manifest = {
        "created": now(),
        "model": describe_model(anatomy, model, collector.device),
        "data": describe_data(source, digests, sequences, tokens),
        "definitions": describe_definitions(plan.metrics, sites, plan.tokens),
        "versions": describe_versions(),
        "seed": plan.seed,
        "processes": world()[1],
    }
    scan = Scan(
        name=plan.name or model_name(model),
        rows=rows_of(collector, state, plan.metrics),
        metrics={metric.name: _card(metric, lengths, collector.dim) for metric in plan.metrics},
        sites=sites,
        manifest=manifest,
        changes=_changes(collector, state, plan.metrics),
        confounds=_confounds(collector, tokenizer),
        notes=_notes(collector, state, model),
        healthy=not bool(state.nonfinite.any()),
    )
    return replace(scan, sentence=one_sentence(scan))


def model_name(model: nn.Module) -> str:
    """What its maker calls the model, else its class."""
    origin = origin_of(model)
    return (origin.id if origin else "") or type(model).__name__


def rows_of(collector: Collector, state: ScanState, metrics: Sequence[BoundMetric]) -> tuple[Row, ...]:
    """Every number by site and layer."""
    rows = []
    for index, place in enumerate(collector.places):
        for number, metric in enumerate(metrics):
            found = state.summary(index, number)
            # A pair metric has no value at its first layer; a layer of NaN keeps its row, to be seen.
            if found.sequences or metric.metric.reads != "pair":
                tokens = int(state.tokens[index])
                numbers = (found.mean, found.std, found.low, found.high, found.sequences, tokens)
                rows.append(Row(place.layer, place.site, metric.name, *numbers))
    order = list(SITES)
    return tuple(sorted(rows, key=lambda row: (order.index(row.site), row.layer)))


def _card(metric: BoundMetric, lengths: Mapping[int, int], dim: int) -> MetricCard:
    declared = metric.metric
    return MetricCard(
        name=metric.name,
        definition=metric.definition,
        paper=declared.paper,
        cost=declared.cost,
        chance=chance_level(metric, lengths, dim),
        chance_note=declared.chance_note,
        degenerate=declared.degenerate,
        rises_when_alike=declared.rises_when_alike,
    )


def _changes(collector: Collector, state: ScanState, metrics: Sequence[BoundMetric]) -> dict[str, Change]:
    if collector.ends is None:
        return {}
    found = {metric.name: state.change(number) for number, metric in enumerate(metrics)}
    return {name: Change(item.mean, item.low, item.high, item.sequences) for name, item in found.items()}


def _confounds(collector: Collector, tokenizer: Any | None) -> tuple[Confound, ...]:
    if collector.confounds is None:
        return ()

    def text_of(token: int) -> str | None:
        return None if tokenizer is None else str(tokenizer.decode([token]))

    layers = [place.layer for place in collector.places if place.site == "residual"]
    return tuple(collector.confounds.confound(index, layer, text_of) for index, layer in enumerate(layers))


def _notes(collector: Collector, state: ScanState, model: nn.Module) -> tuple[str, ...]:
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
    undefined = (state.count.max(dim=1, keepdim=True).values - state.count).max()
    if undefined and math.isfinite(float(undefined)) and not any(_is_pair(item) for item in collector.metrics):
        notes.append(f"Up to {int(undefined)} sequences have no finite value of some metric and are left out of it.")
    return tuple(notes)


def _is_pair(metric: BoundMetric) -> bool:
    return metric.metric.reads == "pair"
