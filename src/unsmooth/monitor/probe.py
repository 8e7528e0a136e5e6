"""Looking at a model: a fixed batch through the plain module, as it was written, without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from unsmooth.functional import BoundMetric
from unsmooth.models import find_anatomy, special_ids
from unsmooth.models.remedied import describe_remedies
from unsmooth.monitor.batch import fitting, shortened
from unsmooth.scanning.calling import TokenChoice, as_inputs, call, quiet_evaluation, select_tokens, transformers_core
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import RawBatch, to_device
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
        found = find_anatomy(model, blocks)
        found.check_sites(sites)
        self.model, self.core = model, transformers_core(model, found)
        self.entry = model if self.core is None else self.core
        self.anatomy = replace(found, model=self.entry)
        self.metrics, self.sites, self.tokens = metrics, sites, tokens
        self._special = special_ids(model, None)
        # A remedy may bring weights into their exact form for evaluation; of others that is seen at the first look.
        self._weights_change = bool(describe_remedies(found.blocks))

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next((one.device for one in self.model.parameters()), torch.device("cpu"))

    def collector(self) -> Collector:
        """Empty sums."""
        return Collector(self.metrics, 0, self.device, names_confounds=False)

    def prepared(self, batch: RawBatch, sequences: int | None) -> RawBatch:
        """The part of a batch of the whole model that a look takes."""
        batch_first = all(map(self.anatomy.host.batch_first, self.anatomy.blocks.values()))
        return fitting(shortened(batch, sequences) if batch_first else batch, self.entry, self.model)

    def begin(self, collector: Collector, batch: RawBatch) -> RawBatch:
        """Have a collector expect the tokens of a batch; returns what to call the model with."""
        inputs = as_inputs(batch, self.core)
        stack = (self.anatomy.prefix_tokens, self.anatomy.reads)
        collector.begin(select_tokens(inputs, self.tokens, self._special, *stack))
        return inputs

    def __call__(self, batch: RawBatch) -> Collector:
        """One pass in evaluation mode; the model and everything random are afterwards as they were."""
        collector = self.collector()
        with self._undisturbed(), self.anatomy.watch(collector, self.sites) as watch:
            collector.watch = watch
            inputs = self.begin(collector, batch)
            call(self.entry, to_device(inputs, collector.device))
            collector.end(0)
        return collector

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


def _reshard(model: nn.Module) -> None:
    """An FSDP2 root keeps its weights gathered until the backward pass, which a look does not have."""
    for module in model.modules():
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            module.reshard()  # type: ignore[operator]
