"""From weights and attention to verdicts, and from data to what was predicted beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.explaining.findings import Explained, assemble
from unsmooth.explaining.observe import BatchView, observe
from unsmooth.explaining.result import Explanation
from unsmooth.explaining.weights import read_weights
from unsmooth.models import Anatomy, find_stacks, model_of
from unsmooth.models.spread import check_device
from unsmooth.models.stacks import pattern_of
from unsmooth.models.watch import none_called
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
from unsmooth.scanning.data import RawBatch, Source, to_device
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
    stack: str | None = None,
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

    A model with several stacks (an encoder and a decoder, two towers) is explained in each, layers counted from 1. A
    stack that the data does not run, or that no theory is about, is left out, and a note says so. With data, each stage
    of a stack between whose layers tokens are merged (Swin) counts as a stack.

    Args:
        model: An nn.Module, a transformers pipeline, or a name for `unsmooth.load`.
        data: As for `unsmooth.scan`; None for weights only.
        blocks: Pattern over module paths for a model that is not recognised, or for one stack of several.
        stack: One stack of several by its name, such as "vision".
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
        An `Explanation`; of several stacks each has its own in `stacks`.

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
    stacks = find_stacks(module, blocks, stack)
    refused = check_explainable(stacks)
    stacks = tuple(one for one in stacks if one.stack not in refused)
    source = None
    if data is not None:
        how = preprocessing(module, stacks, tokenizer, image_processor, batch_size, max_length, column)
        source = open_data(data, how)
    effort = Effort(max_batches, spectral_sequences, jacobian, progress)
    with moved(module, None if device is None else check_device(device)) as here, quiet_evaluation(module):
        if source is None:
            explained = [Explained(one, weights=read_weights(one)) for one in stacks]
        else:
            explained = _gather(stacks, source, here, effort, refused)
        return assemble(module, explained, refused, source, name)


def check_explainable(stacks: Sequence[Anatomy]) -> dict[str, UnsmoothError]:
    """Why some of several stacks cannot be explained, by their names; raised where none can."""
    refused = dict[str, UnsmoothError]()
    for stack in stacks:
        try:
            _check_stack(stack)
        except UnsmoothError as error:
            refused[stack.stack] = error
    if len(refused) == len(stacks):
        raise refused[stacks[0].stack]
    return refused


def _check_stack(anatomy: Anatomy) -> None:
    """Refuse blocks that mix in another stack, which no theory accounts for."""
    if "cross" in anatomy.sites:
        raise expected(
            "blocks of attention and MLP alone, which are what the theory is about",
            f"{anatomy.host.name} blocks with cross-attention",
            'the encoder, such as blocks="encoder.block.*", or unsmooth.scan with sites=("attention", "cross")',
        )


@dataclass(frozen=True)
class Effort:
    """How far to go on data; see `explain`."""

    max_batches: int | None
    spectral_sequences: int
    jacobian: bool
    progress: bool


def _gather(
    stacks: Sequence[Anatomy],
    source: Source,
    device: torch.device,
    effort: Effort,
    refused: dict[str, UnsmoothError],
) -> list[Explained]:
    """What data says of each stack; why nothing can be said of one goes to `refused`."""
    found = dict[str, Explained]()
    most = effort.max_batches
    total = source.batches if most is None else min(source.batches or most, most)
    with progress_bar("explain", total, enabled=effort.progress) as advance:
        for batch, views in islice(views_of(stacks, source, device, refused), most):
            for stack, view, told in views:
                one = found.setdefault(stack.stack, Explained(stack))
                if not view.layers:
                    continue
                # After the pass, which may be the first to reach its blocks.
                one.weights = one.weights or read_weights(stack)
                one.evidence.notes.update(told)
                by_path = {weights.path: weights for weights in one.weights}
                one.evidence.add(view, by_path, effort.spectral_sequences, effort.jacobian)
                one.evidence.digests.append(hash_batch(batch))
            advance()
    kept = [one for name, one in found.items() if name not in refused]
    if refused and not any(one.evidence.digests for one in kept):
        raise [*refused.values()][-1]  # of one that ran, where there is one
    if not any(one.evidence.sequences for one in kept):
        if any(one.evidence.skipped for one in kept):
            skipped = max(one.evidence.skipped for one in kept)
            raise expected("at least one sequence of two tokens or more", f"{skipped} shorter ones", "longer data")
        raise none_called() if kept else expected("at least one batch of data", "none", "data that is not empty")
    return kept


def views_of(
    stacks: Sequence[Anatomy], source: Source, device: torch.device, refused: dict[str, UnsmoothError]
) -> Iterator[tuple[RawBatch, Iterator[tuple[Anatomy, BatchView, dict[str, None]]]]]:
    """Every batch of `source`, and what the blocks of each stack did to it, with what is worth telling of that.

    Each stack is watched in a pass of its own, when it is asked for. Why one of several cannot be goes to `refused`.
    """
    module = stacks[0].model
    core, every = transformers_core(module, *stacks), every_stack(module, stacks)
    seen = [replace(stack, model=module if core is None else core) for stack in stacks]
    for number, batch in enumerate(source.read()):
        called, inputs = entry_of(seen[0].model, every, as_inputs(batch, core), seen)
        on_device = to_device(inputs, device)
        if number == 0:
            seen = [stage for stack in first_look(called, seen, on_device) for stage in _stages(stack)]

        yield batch, _views(called, inputs, on_device, [stack for stack in seen if stack.stack not in refused], refused)


def _stages(stack: Anatomy) -> list[Anatomy]:
    """A stack of its own for each stage, since between them tokens become others: no layer is compared across."""
    numbers = dict.fromkeys(stack.stage(path) for path in stack.blocks)
    if len(numbers) < 2:
        return [stack]
    name, flow = f"{stack.stack} stage".lstrip(), None if stack.stream is None else replace(stack.stream, stages={})
    return [
        replace(
            stack,
            blocks={path: block for path, block in stack.blocks.items() if stack.stage(path) == number},
            stack=f"{name} {number}",
            stream=flow,
        )
        for number in numbers
    ]


def _views(
    called: nn.Module,
    inputs: RawBatch,
    on_device: RawBatch,
    stacks: Sequence[Anatomy],
    refused: dict[str, UnsmoothError],
) -> Iterator[tuple[Anatomy, BatchView, dict[str, None]]]:
    unread = unread_masks(inputs, "all", [stack.reads for stack in stacks])
    for stack in stacks:
        try:
            _check_seen(stack)
            selection, told = select_and_tell(inputs, "all", frozenset(), stack)
            view = observe(stack, on_device, None, called, selection)
            _check_stack(stack)  # once more, where this pass is the first to reach its blocks
        except UnsmoothError as error:
            if len(stacks) == 1:
                raise
            refused[stack.stack] = error
        else:
            yield stack, view, told | unread


def _check_seen(stack: Anatomy) -> None:
    if not (stack.is_known or stack.flow.is_plain):
        what = "blocks that take and return the tokens of the batch first, and as (batch, tokens, dim),"
        hint = "unsmooth.scan, or no data, for verdicts from weights"
        raise expected(what, f"{stack.host.name} at {pattern_of(next(iter(stack.blocks)))!r}", hint)
