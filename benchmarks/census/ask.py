"""What is asked of the library for one model."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import nn

from benchmarks.census import finder
from benchmarks.census.library import asked, scan
from benchmarks.census.matching import ask_padding, ask_scan
from benchmarks.census.remedies import ask_remedies
from benchmarks.census.sites import ask_sites
from benchmarks.census.truth import Answer, add_stages, changed_padding, masks_of, static_agreement, truth
from benchmarks.census.weights import ask_explain, ask_weights

PARTS = ("padding", "remedies", "explain", "weights", "sites")


def examine(
    model: nn.Module,
    batch: Mapping[str, Any],
    sequences: int = 3,
    save: Callable[[Answer], None] = lambda answer: None,
    data: Any = None,
    parts: Collection[str] = PARTS,
) -> Answer:
    """All that the census asks of the library about one model.

    Args:
        model: In evaluation mode.
        batch: What it is called with.
        sequences: How many are in the batch.
        save: Is handed what is known after each part.
        data: What is handed to the library; default the batch.
        parts: What is asked beside the scan.
    """
    data = dict(batch) if data is None else data
    recorder = finder.Recorder(model)
    calls = recorder.run(batch)
    stacks = finder.stacks_in(calls)
    answer: Answer = {"stacks": [], "attends": any(call.attends for call in calls)}
    if not stacks:
        answer["verdict"] = "no stack"
        answer["scan"] = asked(lambda: scan(model, data))[0]
        return answer
    moved = {}
    for name in masks_of(batch):
        other = changed_padding(batch, [name])
        if other is not None:
            moved[name] = {stack.key: stack for stack in finder.find(model, other)}
    other_padding = changed_padding(batch)
    truths = [truth(stack, model, batch, moved, sequences) for stack in stacks]
    add_stages(truths, calls)
    answer["stacks"] = [one["about"] for one in truths]
    answer["static"] = static_agreement(model, calls, stacks)
    save(answer)
    started = time.perf_counter()
    scanned = ask_scan(model, data, truths, lambda: _loosely(model, batch, calls, sequences))
    answer["scan_seconds"] = round(time.perf_counter() - started, 3)
    answer |= scanned
    save(answer)
    if scanned["verdict"] in ("right", "left out"):
        answer["padding"] = ask_padding(model, batch, other_padding, truths) if "padding" in parts else "not asked"
    for part, ask in (
        ("remedies", lambda: ask_remedies(model, batch, stacks)),
        ("explain", lambda: ask_explain(model, data)),
        ("weights", lambda: ask_weights(model, batch, truths, calls)),
        ("sites", lambda: ask_sites(model, data, truths, calls)),
    ):
        if (part in parts and part != "sites") or (part in parts and scanned["verdict"] in ("right", "left out")):
            answer[part] = ask()
            save(answer)
    return answer


def _loosely(model: nn.Module, batch: Mapping[str, Any], calls: list[finder.Call], sequences: int) -> list[Answer]:
    """The truth about lists between whose blocks so much is done that values alone do not show a stream."""
    changed = {name: changed_padding(batch, [name]) for name in masks_of(batch)}
    moved = {
        name: {stack.key: stack for stack in finder.find(model, other, loose=True)}
        for name, other in changed.items()
        if other is not None
    }
    return [truth(stack, model, batch, moved, sequences) for stack in finder.stacks_in(calls, loose=True)]
