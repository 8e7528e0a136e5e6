"""From weights and attention to verdicts, and from data to what was predicted beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from unsmooth.errors import expected
from unsmooth.explaining.evidence import Evidence
from unsmooth.explaining.findings import assemble
from unsmooth.explaining.observe import BatchView, observe
from unsmooth.explaining.result import Explanation
from unsmooth.explaining.weights import Weights, read_weights
from unsmooth.models import Anatomy, find_anatomy, model_of
from unsmooth.models.spread import check_device
from unsmooth.models.stacks import pattern_of
from unsmooth.scanning.calling import (
    as_inputs,
    entry_of,
    every_stack,
    moved,
    quiet_evaluation,
    select_and_tell,
    transformers_core,
    unread_masks,
)
from unsmooth.scanning.data import Source, to_device
from unsmooth.scanning.first_look import first_look
from unsmooth.scanning.inputs import preprocessing
from unsmooth.scanning.manifest import hash_batch
from unsmooth.scanning.opening import open_data
from unsmooth.scanning.plan import check_at_least_one
from unsmooth.scanning.progress import progress_bar


def explain(
    model: nn.Module | str,
    data: Any | None = None,
    *,
    blocks: str | None = None,
    max_batches: int | None = 8,
    batch_size: int = 4,
    max_length: int | None = 128,
    spectral_sequences: int = 2,
    jacobian: bool = True,
    device: torch.device | str | None = None,
    tokenizer: Any | None = None,
    image_processor: Any | None = None,
    column: str | None = None,
    progress: bool = True,
    name: str | None = None,
) -> Explanation:
    """Say why the tokens of a Transformer become alike, layer by layer, or why they do not.

    Without data the verdicts are about weights alone: what the layer would do under attention that averages all
    tokens, and the scale of the stream at which that turns. With data they are about the attention that was measured,
    and what each tier of knowledge foretells stands beside the change of logit t_sim that was measured. All tokens
    that are not padding count, special ones too: the operators act on all of them.

    Args:
        model: An nn.Module, a transformers pipeline, or a name for `unsmooth.load`.
        data: As for `unsmooth.scan`; None for weights only.
        blocks: Pattern over module paths for a model that is not recognised, or for one stack of several.
        max_batches: Stop after so many batches.
        batch_size: Sequences per batch, for data that is not batched yet.
        max_length: Tokens after which a text is cut: Jacobians and spectra of attention grow with its square and cube.
        spectral_sequences: Sequences whose attention maps are decomposed.
        jacobian: Also take norms of each block's Jacobian, on the first batch.
        device: Move the model there, and back.
        tokenizer: For texts, where the model does not come with one.
        image_processor: For images, likewise.
        column: Which column of a table holds the texts or images, as for `unsmooth.scan`.
        progress: Show a progress bar on a terminal.
        name: What to call the explanation; default the model's name.

    Returns:
        An `Explanation`.

    Example:
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> stack = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> found = explain(stack, torch.randn(4, 10, 8), progress=False)
        >>> [one.layer for one in found.layers], len(found.heads)
        ([1, 2], 4)
    """
    for option, value in (("batch_size", batch_size), ("max_batches", max_batches), ("max_length", max_length)):
        check_at_least_one(option, value)
    check_at_least_one("spectral_sequences", spectral_sequences)
    module = model_of(model)
    anatomy = find_anatomy(module, blocks)
    check_explainable(anatomy, with_data=data is not None)
    source = None
    if data is not None:
        how = preprocessing(module, [anatomy], tokenizer, image_processor, batch_size, max_length, column)
        source = open_data(data, how)
    effort = Effort(max_batches, spectral_sequences, jacobian, progress)
    with moved(module, None if device is None else check_device(device)) as here, quiet_evaluation(module):
        weights = read_weights(anatomy)
        evidence = Evidence()
        if source is not None:
            _gather(evidence, anatomy, source, weights, here, effort)
        return assemble(module, anatomy, weights, evidence, source, name)


def check_explainable(anatomy: Anatomy, with_data: bool) -> None:
    """Refuse blocks that mix in another stack, which no theory accounts for, and layers whose tokens become others."""
    if "cross" in anatomy.sites:
        raise expected(
            "blocks of attention and MLP alone, which are what the theory is about",
            f"{anatomy.host.name} blocks with cross-attention",
            'the encoder, such as blocks="encoder.block.*", or unsmooth.scan with sites=("attention", "cross")',
        )
    stages = {anatomy.stage(path) for path in anatomy.blocks}
    if with_data and len(stages) > 1:
        one = pattern_of(next(iter(anatomy.blocks))).replace("*", "0", 1)
        raise expected(
            "layers with the same tokens throughout, to compare one with the next",
            f"{len(stages)} stages of {anatomy.host.name}, between which tokens are merged",
            f"one stage, such as blocks={one!r}, or no data, for verdicts from weights",
        )


@dataclass(frozen=True)
class Effort:
    """How far to go on data; see `explain`."""

    max_batches: int | None
    spectral_sequences: int
    jacobian: bool
    progress: bool


def _gather(
    evidence: Evidence, anatomy: Anatomy, source: Source, weights: list[Weights], device: torch.device, effort: Effort
) -> None:
    by_path = {one.path: one for one in weights}
    most = effort.max_batches
    total = source.batches if most is None else min(source.batches or most, most)
    with progress_bar("explain", total, enabled=effort.progress) as advance:
        for batch, view in islice(views_of(anatomy, source, device, evidence.notes), most):
            evidence.add(view, by_path, effort.spectral_sequences, effort.jacobian)
            evidence.digests.append(hash_batch(batch))
            advance()
    if evidence.sequences == 0:
        raise expected("at least one sequence of two tokens or more", f"{evidence.skipped} shorter ones", "longer data")


def views_of(
    anatomy: Anatomy, source: Source, device: torch.device, notes: dict[str, None]
) -> Iterator[tuple[Any, BatchView]]:
    """Every batch of `source` and what the blocks of `anatomy` did to it; what is worth telling goes to `notes`."""
    module = anatomy.model
    core, stacks = transformers_core(module, anatomy), every_stack(module, [anatomy])
    seen = replace(anatomy, model=module if core is None else core)
    for batch in source.read():
        called, inputs = entry_of(seen.model, stacks, as_inputs(batch, core), [seen])
        [seen, *others] = first_look(called, [seen], to_device(inputs, device))
        if others or not (seen.is_known or (seen.flow.is_plain and seen.reads.start is None)):
            what = "blocks that take and return the tokens of the batch first, and as (batch, tokens, dim),"
            hint = "unsmooth.scan, or no data, for verdicts from weights"
            raise expected(what, f"{seen.host.name} at {pattern_of(next(iter(seen.blocks)))!r}", hint)
        selection, told = select_and_tell(inputs, "all", frozenset(), seen)
        notes.update(told | unread_masks(inputs, "all", [seen.reads]))
        yield batch, observe(seen, to_device(inputs, device), selection.real_BN, called, selection.check_padding)
