"""One forward pass over data, watched for one scan or for several that look at different tokens and sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.models import Anatomy, special_ids
from unsmooth.models.fingerprint import hashing
from unsmooth.models.spread import home_of, is_sharded
from unsmooth.models.wire import forget_pass, remember_pass
from unsmooth.scanning.assemble import assemble
from unsmooth.scanning.calling import (
    as_inputs,
    call,
    entry_of,
    every_stack,
    moved,
    quiet_evaluation,
    select_and_tell,
    transformers_core,
    unread_masks,
)
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import RawBatch, Source, to_device
from unsmooth.scanning.first_look import altered_note, first_look
from unsmooth.scanning.gathering import MapSums
from unsmooth.scanning.manifest import hash_batch
from unsmooth.scanning.plan import Plan
from unsmooth.scanning.progress import progress_bar
from unsmooth.scanning.ranks import lost_ranks_told, merge, own_batches, world
from unsmooth.scanning.result import Scan
from unsmooth.scanning.together import marked_unfinished

# Bytes of a batch that is kept with the model it was shown to.
_KEPT = 1 << 26


class ScanInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a scan; `scan` holds what was measured until then, None where nothing was."""

    def __init__(self, scan: Scan | None) -> None:
        super().__init__("the scan was interrupted")
        self.scan = scan


@dataclass(frozen=True)
class _Watched:
    """A stack, as the model is called, what is asked about it, and what collects its numbers."""

    anatomy: Anatomy
    plan: Plan
    collector: Collector


def one_pass(
    module: nn.Module,
    stacks: Sequence[Anatomy],
    source: Source,
    plans: Sequence[Plan],
    tokenizer: Any | None,
    label: str,
) -> list[Scan]:
    """A scan for each plan. They may differ in metrics, sites, tokens, confounds and name; the rest is the first's."""
    core = transformers_core(module, *stacks)
    entry = module if core is None else core
    hashed = hashing(module) if plans[0].fingerprint else nullcontext()
    with moved(module, plans[0].device) as device, quiet_evaluation(module), hashed as weight_hash:
        words, alone = _vocabulary(core), len(stacks) == 1
        watched = [
            _Watched(
                replace(stack, model=entry),
                plan,
                Collector(plan.metrics, words, device, confounding=plan.confounds, alone=alone),
            )
            for plan in plans
            for stack in stacks
        ]
        digests: dict[int, bytes] = {}
        weights, interrupted = None, False
        with lost_ranks_told():
            try:
                beside = every_stack(module, stacks)
                _read_all(watched, core, beside, source, digests, special_ids(module, tokenizer), label)
            except KeyboardInterrupt:
                interrupted = True
            for one in watched:
                one.collector.settle()
            in_order = [digests[number] for number in sorted(digests)]
            if not interrupted:
                for one in watched:
                    in_order = merge(one.collector, digests)
            if interrupted and all(one.collector.state is None for one in watched):
                raise ScanInterrupted(None)
            try:
                weights = None if weight_hash is None else weight_hash()
            except KeyboardInterrupt:
                interrupted = True
        results = []
        for plan in plans:
            found = [(one.anatomy, one.collector) for one in watched if one.plan is plan]
            results.append(assemble(found, module, source, in_order, plan, tokenizer, weights))
    if interrupted:
        note = f"Interrupted after {len(digests)} batches: the numbers are those of what was read."
        raise ScanInterrupted(marked_unfinished(results[0], note))
    return results


def _read_all(
    watched: list[_Watched],
    core: nn.Module | None,
    beside: Sequence[Anatomy],
    source: Source,
    digests: dict[int, bytes],
    special: frozenset[int],
    label: str,
) -> None:
    rank, size = world()
    model, device, plan = watched[0].anatomy.model, watched[0].collector.device, watched[0].plan
    total = source.batches if plan.max_batches is None else min(source.batches or plan.max_batches, plan.max_batches)
    share = None if total is None else (total if source.sharded else -(-(total - rank) // size))
    looked = False
    with ExitStack() as hooks:
        advance = hooks.enter_context(progress_bar(label, share, enabled=plan.progress and rank == 0))
        read = batches_in_step if is_sharded(model) else own_batches
        for number, batch in read(source, plan.max_batches):
            entry, inputs = entry_of(model, beside, as_inputs(batch, core), [one.anatomy for one in watched])
            on_device = to_device(inputs, device)
            if not looked:
                asked = [one.anatomy for one in watched if one.plan is plan]
                watched[:] = _known_better(watched, asked, entry, on_device)
                if not is_sharded(entry):
                    _remember(watched, entry, inputs, hooks)
                hooks.enter_context(_watching(watched))
                looked = True
            reads = [one.anatomy.reads for one in watched]
            for one in watched:
                one.collector.notes.update(unread_masks(inputs, one.plan.tokens, reads))
                selection, notes = select_and_tell(inputs, one.plan.tokens, special, one.anatomy)
                one.collector.notes.update(notes)
                one.collector.begin(selection)
            call(entry, on_device)
            if number is None:
                continue  # run for the sake of other ranks
            for one in watched:
                if one.collector.touched or one.collector.alone:
                    one.collector.end(number)
            digests[number] = hash_batch(batch)
            advance()


def _known_better(
    watched: Sequence[_Watched], stacks: Sequence[Anatomy], entry: nn.Module, inputs: RawBatch
) -> list[_Watched]:
    """The stacks with what the first batch shows of them: some may be none, and some two."""
    found = first_look(entry, stacks, inputs)
    if len(found) == len(stacks):
        return [replace(one, anatomy=found[number % len(stacks)]) for number, one in enumerate(watched)]
    plans = watched[:: len(stacks)]
    return [
        replace(one, anatomy=anatomy, collector=one.collector.for_another(alone=len(found) == 1))
        for one in plans
        for anatomy in found
    ]


def _called_again(entry: nn.Module, inputs: RawBatch) -> None:
    with suppress(UnsmoothError):  # the model may be another by now
        call(entry, to_device(inputs, home_of(entry)))


def _remember(watched: Sequence[_Watched], entry: nn.Module, inputs: RawBatch, hooks: ExitStack) -> None:
    """Have the inside of blocks be found on these data when somebody asks for it: also later, unless they are large."""
    blocks = [block for one in watched for block in one.anatomy.blocks.values()]
    remember_pass(blocks, _called_again, entry, inputs)
    tensors = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    if sum(one.numel() * one.element_size() for one in tensors if isinstance(one, Tensor)) > _KEPT:
        hooks.callback(forget_pass, blocks)


@contextmanager
def _watching(watched: Sequence[_Watched]) -> Iterator[None]:
    """Show each collector its stack."""
    with ExitStack() as hooks:
        for one in watched:
            sites = one.anatomy.having(one.plan.sites)
            one.collector.watch = hooks.enter_context(one.anatomy.watch(one.collector, sites))
            hooks.enter_context(_watch_maps(one.anatomy, one.collector))
        yield
        for one in watched:
            if one.collector.watch is not None and (altered := one.collector.watch.altered):
                one.collector.notes[altered_note(altered, one.anatomy)] = None


def _vocabulary(core: nn.Module | None) -> int:
    config = getattr(core, "config", None)
    return int(getattr(getattr(config, "text_config", config), "vocab_size", 0) or 0)


def _watch_maps(anatomy: Anatomy, collector: Collector) -> AbstractContextManager[None]:
    """Show the collector attention maps, if a metric reads them: they cost batch·heads·tokens² numbers a layer."""
    for gathering in collector.gatherings:
        if isinstance(gathering, MapSums):
            return anatomy.watch_attention(collector.see_maps, gathering.no_map)
    return nullcontext()


def batches_in_step(source: Source, max_batches: int | None) -> Iterator[tuple[int | None, RawBatch]]:
    """This rank's batches with their numbers, as many on every rank.

    Where the last round has fewer batches than there are ranks, those without one run its first, numbered None. A
    loader with a DistributedSampler has dealt out as many to each rank already.
    """
    rank, size = world()
    if source.sharded:
        yield from own_batches(source, max_batches)
        return
    batches, number = islice(source.read(), max_batches), rank
    while around := list(islice(batches, size)):
        yield (number, around[rank]) if rank < len(around) else (None, around[0])
        number += size
