"""Looking at a model: a fixed batch through the plain module, as it was written, without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import nn

from unsmooth.functional import BoundMetric
from unsmooth.models import find_stacks, special_ids
from unsmooth.models.anatomy import Observer
from unsmooth.models.remedied import describe_remedies
from unsmooth.monitor.batch import fitting, shortened
from unsmooth.scanning.calling import (
    TokenChoice,
    as_inputs,
    call,
    entry_of,
    every_stack,
    quiet_evaluation,
    select_tokens,
    transformers_core,
)
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import RawBatch, to_device
from unsmooth.scanning.plan import sites_of
from unsmooth.scanning.undisturbed import any_kernel, local, random_kept, tensors_kept


def plain(model: nn.Module) -> nn.Module:
    """The module itself, out of torch.compile and of what copies it to devices."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while isinstance(model, wrappers) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, wrappers) else model._orig_mod  # type: ignore[assignment]
    return model


class Probe:
    """Looks at one model as often as wanted.

    Args:
        model: The plain module.
        metrics: What to measure.
        sites: Where.
        tokens: Which tokens.
        blocks: Pattern of blocks for a model that is not recognised.
    """

    def __init__(
        self,
        model: nn.Module,
        metrics: Sequence[BoundMetric],
        sites: Sequence[str],
        tokens: TokenChoice = "content",
        blocks: str | None = None,
    ) -> None:
        found = find_stacks(model, blocks)
        self.model, self.core = model, transformers_core(model, *found)
        self.entry = model if self.core is None else self.core
        self.stacks = tuple(replace(stack, model=self.entry) for stack in found)
        self._beside = every_stack(model, found)
        self.metrics, self.sites, self.tokens = metrics, sites_of(found, sites), tokens
        self._special = special_ids(model, None)
        # A remedy may bring weights into their exact form for evaluation; of others that is seen at the first look.
        self._weights_change = any(describe_remedies(stack.blocks) for stack in found)

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next((one.device for one in self.model.parameters()), torch.device("cpu"))

    def collectors(self) -> list[Collector]:
        """Empty sums, for each stack: of the numbers that a reading shows, and nothing else."""
        alone = len(self.stacks) == 1
        return [Collector(self.metrics, 0, self.device, rows_only=True, alone=alone) for _ in self.stacks]

    @contextmanager
    def watch(
        self,
        collectors: Sequence[Collector],
        observers: Sequence[Observer],
        on_error: Callable[[Exception], None] | None = None,
    ) -> Iterator[None]:
        """Show each stack to its observer while the context is open."""
        with ExitStack() as hooks:
            for stack, collector, observer in zip(self.stacks, collectors, observers, strict=True):
                sites = [site for site in self.sites if site in stack.sites]
                collector.watch = hooks.enter_context(stack.watch(observer, sites, on_error))
            yield

    def prepared(self, batch: RawBatch, sequences: int | None) -> RawBatch:
        """The part of a batch of the whole model that a look takes."""
        batch_first = all(stack.host.batch_first(block) for stack in self.stacks for block in stack.blocks.values())
        return fitting(shortened(batch, sequences) if batch_first else batch, self.entry, self.model)

    def begin(self, collectors: Sequence[Collector], batch: RawBatch) -> tuple[nn.Module, RawBatch]:
        """Have collectors expect the tokens of a batch; returns what to call, and with what."""
        entry, inputs = entry_of(self.entry, self._beside, as_inputs(batch, self.core))
        for stack, collector in zip(self.stacks, collectors, strict=True):
            tokens = (self._special, stack.prefix_tokens, stack.reads)
            collector.begin(select_tokens(inputs, self.tokens, *tokens))
        return entry, inputs

    def __call__(self, batch: RawBatch) -> list[Collector]:
        """One pass in evaluation mode; the model and everything random are afterwards as they were."""
        collectors = self.collectors()
        with self._undisturbed(), self.watch(collectors, collectors):
            entry, inputs = self.begin(collectors, batch)
            call(entry, to_device(inputs, self.device))
            end(collectors)
        return collectors

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        versions = None if self._weights_change else [local(one)._version for one in self.model.parameters()]
        with (
            any_kernel(),
            random_kept(self.device),
            tensors_kept(self.model, weights=self._weights_change),
            quiet_evaluation(self.model, self.core),
        ):
            try:
                yield
            finally:
                _reshard(self.model)
        if versions is not None and versions != [local(one)._version for one in self.model.parameters()]:
            self._weights_change = True  # from now on they are put back


def end(collectors: Sequence[Collector]) -> None:
    """The pass is over; a stack that had no part in it stays empty."""
    for collector in collectors:
        if collector.touched or collector.alone:
            collector.end(0)


def _reshard(model: nn.Module) -> None:
    """An FSDP2 root keeps its weights gathered until the backward pass, which a look does not have."""
    for module in model.modules():
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            module.reshard()  # type: ignore[operator]
