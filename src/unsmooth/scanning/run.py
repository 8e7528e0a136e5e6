"""One forward pass over data, measured at every layer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from unsmooth.errors import expected
from unsmooth.models import Anatomy, find_stacks, load, origin_of, special_ids, with_random_weights
from unsmooth.models.spread import is_sharded
from unsmooth.scanning.assemble import assemble
from unsmooth.scanning.calling import (
    TokenChoice,
    as_inputs,
    call,
    entry_of,
    every_stack,
    moved,
    quiet_evaluation,
    select_tokens,
    transformers_core,
)
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import Preprocessing, Source, open_data, to_device
from unsmooth.scanning.gathering import MapSums
from unsmooth.scanning.in_step import batches_in_step
from unsmooth.scanning.manifest import hash_batch
from unsmooth.scanning.plan import Plan, check_at_least_one, check_metrics, check_sites, check_sites_of, check_tokens
from unsmooth.scanning.progress import progress_bar
from unsmooth.scanning.ranks import merge, own_batches, world
from unsmooth.scanning.result import Scan
from unsmooth.scanning.together import compared_with, marked_unfinished


class ScanInterrupted(KeyboardInterrupt):
    """Ctrl-C during a scan; `scan` holds what was measured until then, None where nothing was."""

    def __init__(self, scan: Scan | None) -> None:
        super().__init__("the scan was interrupted")
        self.scan = scan


def scan(
    model: nn.Module | str,
    data: Any,
    *,
    metrics: Sequence[str] | None = None,
    sites: Sequence[str] = ("residual",),
    tokens: TokenChoice = "content",
    max_batches: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    blocks: str | None = None,
    baseline: bool = False,
    batch_size: int = 16,
    max_length: int | None = None,
    tokenizer: Any | None = None,
    image_processor: Any | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Scan:
    """Measure how alike the tokens of a Transformer are at every layer.

    A model with several stacks (an encoder and a decoder, two towers) is measured in each, layers counted from 0. A
    stack whose inputs the data does not have is left out, and a note says so.

    One forward pass in evaluation mode; hooks turn each tensor into a few sums where it is and are gone afterwards.
    Under ``torchrun`` with an initialised process group the batches are dealt out to the ranks and every rank
    returns the result of all.

    Args:
        model: An nn.Module, or a name for `unsmooth.load`.
        data: Texts, images, a tensor, a dict of tensors, a DataLoader, or the path of a folder or text file.
            In a dict, "attention_mask" marks real tokens; "token_mask" (True = real) and "special_tokens_mask" do the
            same for models that take no such arguments, and are not handed to the model.
        metrics: Names such as "effective_rank" or "mean_cosine(absolute=True)"; None for the O(nd) set.
        sites: Where in each block, see `unsmooth.models.SITES`.
        tokens: "content" leaves special tokens out, "all" does not; padding is never counted.
        max_batches: Stop after so many batches.
        device: Move the model there for the scan, and back.
        progress: Show a progress bar on a terminal.
        blocks: Pattern over module paths for a model that is not recognised, such as "encoder.layers.*".
        baseline: Also scan the same architecture with random weights.
        batch_size: Sequences per batch, for data that is not batched yet.
        max_length: Tokens after which a text is cut; default 512 or the model's limit.
        tokenizer: For texts, where the model does not come with one.
        image_processor: For images, likewise.
        name: What to call the scan; default the model's name.
        seed: Seed of the random baseline.

    Returns:
        A `Scan`: numbers with their definitions.

    Example:
        >>> import torch
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> found = scan(torch.nn.TransformerEncoder(layer, 3), torch.randn(4, 10, 8), progress=False)
        >>> found.layers
        (0, 1, 2, 3)
    """
    plan = Plan(
        metrics=check_metrics(metrics, maps=True),
        sites=check_sites(sites),
        tokens=check_tokens(tokens),
        max_batches=check_at_least_one("max_batches", max_batches),
        device=None if device is None else torch.device(device),
        progress=progress,
        blocks=blocks,
        seed=seed,
        name=name,
    )
    check_at_least_one("batch_size", batch_size)
    check_at_least_one("max_length", max_length)
    module = load(model) if isinstance(model, str) else model
    stacks = find_stacks(module, blocks)
    check_sites_of(stacks, plan.sites)
    how = preprocessing(module, stacks[0], tokenizer, image_processor, batch_size, max_length)
    source = open_data(data, how)
    if baseline and not source.replayable:
        raise expected("data that can be read twice for a baseline", "a one-shot iterator", "a list or DataLoader")
    found = _scan_once(module, source, plan, how.tokenizer, label="scan")
    return _with_baseline(found, module, source, plan, how.tokenizer) if baseline else found


def _with_baseline(found: Scan, module: nn.Module, source: Source, plan: Plan, tokenizer: Any | None) -> Scan:
    random = with_random_weights(module, plan.seed)
    plan = replace(plan, name=f"{found.name} (random weights)")
    try:
        other = _scan_once(random, source, plan, tokenizer, label="random weights")
    except ScanInterrupted:
        raise ScanInterrupted(replace(found, notes=(*found.notes, "Interrupted before the baseline."))) from None
    return compared_with(found, other)


@dataclass(frozen=True)
class _Watched:
    """A stack, as the model is called, and what collects its numbers."""

    anatomy: Anatomy
    collector: Collector


def _scan_once(module: nn.Module, source: Source, plan: Plan, tokenizer: Any | None, label: str) -> Scan:
    stacks = find_stacks(module, plan.blocks)
    core = transformers_core(module, *stacks)
    entry = module if core is None else core
    with moved(module, plan.device) as device, quiet_evaluation(module, core):
        words, alone = _vocabulary(core), len(stacks) == 1
        watched = [
            _Watched(replace(stack, model=entry), Collector(plan.metrics, words, device, alone=alone))
            for stack in stacks
        ]
        digests: dict[int, bytes] = {}
        interrupted = False
        try:
            beside = every_stack(module, stacks)
            _read_all(watched, core, beside, source, plan, digests, special_ids(module, tokenizer), label)
        except KeyboardInterrupt:
            interrupted = True
        in_order = [digests[number] for number in sorted(digests)]
        if not interrupted:
            for one in watched:
                in_order = merge(one.collector, digests)
        if interrupted and all(one.collector.state is None for one in watched):
            raise ScanInterrupted(None)
        found = [(one.anatomy, one.collector) for one in watched]
        result = assemble(found, module, source, in_order, plan, tokenizer)
    if interrupted:
        note = f"Interrupted after {len(digests)} batches: the numbers are those of what was read."
        raise ScanInterrupted(marked_unfinished(result, note))
    return result


def _read_all(
    watched: Sequence[_Watched],
    core: nn.Module | None,
    stacks: Sequence[Anatomy],
    source: Source,
    plan: Plan,
    digests: dict[int, bytes],
    special: frozenset[int],
    label: str,
) -> None:
    rank, size = world()
    model, device = watched[0].anatomy.model, watched[0].collector.device
    total = source.batches if plan.max_batches is None else min(source.batches or plan.max_batches, plan.max_batches)
    share = None if total is None else (total if source.sharded else -(-(total - rank) // size))
    with ExitStack() as hooks:
        for one in watched:
            sites = [site for site in plan.sites if site in one.anatomy.sites]
            one.collector.watch = hooks.enter_context(one.anatomy.watch(one.collector, sites))
            hooks.enter_context(_watch_maps(one.anatomy, one.collector))
        advance = hooks.enter_context(progress_bar(label, share, enabled=plan.progress and rank == 0))
        read = batches_in_step if is_sharded(model) else own_batches
        for number, batch in read(source, plan.max_batches):
            entry, inputs = entry_of(model, stacks, as_inputs(batch, core))
            for one in watched:
                tokens = (special, one.anatomy.prefix_tokens, one.anatomy.reads)
                one.collector.begin(select_tokens(inputs, plan.tokens, *tokens))
            call(entry, to_device(inputs, device))
            if number is None:
                continue  # run for the sake of other ranks
            for one in watched:
                if one.collector.touched or len(watched) == 1:
                    one.collector.end(number)
            digests[number] = hash_batch(batch)
            advance()


def _vocabulary(core: nn.Module | None) -> int:
    config = getattr(core, "config", None)
    return int(getattr(getattr(config, "text_config", config), "vocab_size", 0) or 0)


def _watch_maps(anatomy: Anatomy, collector: Collector) -> AbstractContextManager[None]:
    """Show the collector attention maps, if a metric reads them: they cost batch·heads·tokens² numbers a layer."""
    for gathering in collector.gatherings:
        if isinstance(gathering, MapSums):
            return anatomy.watch_attention(collector.see_maps, gathering.no_map)
    return nullcontext()


def preprocessing(
    module: nn.Module,
    anatomy: Anatomy,
    tokenizer: Any | None,
    image_processor: Any | None,
    batch_size: int,
    max_length: int | None,
) -> Preprocessing:
    """How data becomes what `module` reads: its own tokenizer and image processor unless others are given."""
    origin = origin_of(module)
    core = transformers_core(module, anatomy)
    # A sentence-transformers model carries its tokenizer itself.
    tokenizer = tokenizer or (origin.tokenizer if origin else None) or getattr(module, "tokenizer", None)
    return Preprocessing(
        tokenizer=tokenizer,
        image_processor=image_processor or (origin.image_processor if origin else None),
        batch_size=batch_size,
        max_length=max_length,
        model_limit=_position_limit(getattr(core, "config", None)),
    )


def _position_limit(config: Any) -> int | None:
    """How many tokens the model's positions allow; RoBERTa and MPNet keep two rows of theirs for padding."""
    limit = getattr(getattr(config, "text_config", config), "max_position_embeddings", None)
    if not isinstance(limit, int):
        return None
    offset = 2 if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "mpnet") else 0
    return limit - offset
