"""A fixed batch, given or the first of the training, put through the plain module as written, without any trace."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.functional import BoundMetric
from unsmooth.models import find_stacks, special_ids
from unsmooth.models.anatomy import Observer
from unsmooth.models.hooks import Hooks
from unsmooth.models.remedied import describe_remedies
from unsmooth.models.spread import sharded_modules
from unsmooth.models.walk import modules_of
from unsmooth.monitor.cuda_graph import Captured, Replays, alike
from unsmooth.scanning.calling import (
    Selection,
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
from unsmooth.scanning.data import RawBatch, cut_batch, sequences_of, to_device
from unsmooth.scanning.first_look import first_look, is_open
from unsmooth.scanning.inputs import Reading
from unsmooth.scanning.plan import sites_of
from unsmooth.scanning.trying import look_inside
from unsmooth.scanning.undisturbed import SmallOnes, any_kernel, drawn, local, random_kept, tensors_kept

# Of the first batch this share is looked at, so that a look costs a small part of a step.
_SHARE = 4
_FEWEST, _MOST = 2, 8


class FirstBatch:
    """Keeps what a model is first called with in training by this thread, by a hook that is gone afterwards.

    A model compiled in place runs its hooks inside of what is compiled, or not at all: there the call itself is seen.

    Args:
        model: As it is called: compiled or wrapped, if so.
    """

    def __init__(self, model: nn.Module) -> None:
        self.seen: RawBatch | None = None
        self.problem: Exception | None = None
        self._model = model
        self._hooks = Hooks()
        self._hooks(model.register_forward_pre_hook, self._see, with_kwargs=True)
        self._call: _SeenCall | None = None
        self.look_at_call()

    def look_at_call(self) -> None:
        """See the call itself, where the model is compiled in place by now."""
        compiled = self._model._compiled_call_impl
        if compiled is not None and self._call is None:
            self._call = _SeenCall(compiled, partial(self._see, self._model))
            self._model._compiled_call_impl = self._call

    def _see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._model.training and self.seen is None:
            try:
                self.seen = kept(named(self._model, args, kwargs))
            except Exception as error:  # a training run does not stop for this
                self.problem = error
            self.close()

    def close(self) -> None:
        """Take the hook away, if it is still there, and give the call back, if it is still ours."""
        self._hooks.close()
        if self._call is not None and self._model._compiled_call_impl is self._call:
            self._model._compiled_call_impl = self._call.compiled


class _SeenCall:
    """Stands where a model compiled in place has its compiled call."""

    def __init__(self, compiled: Any, see: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        self.compiled = compiled
        self.see = see
        self.thread = threading.get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == self.thread:
            self.see(args, kwargs)
        return self.compiled(*args, **kwargs)


def named(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RawBatch:
    """A call as one tensor, or as a dict by the names of the arguments."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return args[0]
    while hasattr(module, "_orig_mod"):  # torch.compile's wrapper takes anything
        module = module._orig_mod  # type: ignore[assignment]
    parameters = inspect.signature(module.forward).parameters.values()
    starred = {one.name: one.kind for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    for name, kind in starred.items():
        more = bound.pop(name, None)
        if more and kind is inspect.Parameter.VAR_POSITIONAL:
            raise expected("a model whose inputs have names", f"{len(more)} without", "Monitor(model, probe=batch)")
        bound |= more or {}
    return bound


def kept(batch: RawBatch) -> RawBatch:
    """The tensors of a batch, copied: a loader may write into the same memory again."""
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    return {
        key: value.detach().clone() if isinstance(value, Tensor) else value
        for key, value in batch.items()
        if value is not None
    }


def shortened(batch: RawBatch, sequences: int | None) -> RawBatch:
    """The first sequences of a batch: so many, or by default a quarter, from 2 to 8; all where it cannot be cut.

    >>> import torch
    >>> shortened(torch.zeros(32, 5, 8), None).shape
    torch.Size([8, 5, 8])
    >>> shortened({"input_ids": torch.zeros(3, 9)}, None)["input_ids"].shape
    torch.Size([2, 9])
    """
    size = len(batch) if isinstance(batch, Tensor) else sequences_of(batch)
    if size is None:
        return batch
    count = sequences or min(max(size // _SHARE, _FEWEST), _MOST)
    return batch[:count] if isinstance(batch, Tensor) else cut_batch(batch, size, 0, count)


def fitting(batch: RawBatch, inner: nn.Module, outer: nn.Module) -> RawBatch:
    """What of a call of the outer model its inner part takes: heads have arguments of their own."""
    if isinstance(batch, Tensor):
        return batch
    shifted = getattr(outer, "prepare_decoder_input_ids_from_labels", None)
    if callable(shifted) and "labels" in batch and "decoder_input_ids" not in batch:
        # Labels are no input of a look, and the model would have made its decoder's tokens of them.
        batch = {**batch, "decoder_input_ids": shifted(labels=batch["labels"])}
    if inner is outer:
        return batch
    known = inspect.signature(inner.forward).parameters
    return {key: value for key, value in batch.items() if key in known}


def plain(model: nn.Module) -> nn.Module:
    """The module itself, out of torch.compile and of what copies it to devices."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while isinstance(model, wrappers) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, wrappers) else model._orig_mod  # type: ignore[assignment]
    return model


@dataclass(frozen=True)
class _Ready:
    """A batch that is looked at again and again, with what does not change from look to look.

    Args:
        batch: As it came.
        device: Where the model was.
        entry: What to call.
        inputs: With what, on that device.
        selections: Which tokens are measured, for each stack.
    """

    batch: RawBatch
    device: torch.device
    entry: nn.Module
    inputs: RawBatch
    selections: Sequence[Selection]


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
        self._ready: _Ready | None = None
        self._small = SmallOnes()
        self._replays = Replays(model)

    def measure(self, metrics: Sequence[BoundMetric], sites: Sequence[str]) -> None:
        """From the next look on, measure other metrics, or at other sites."""
        self.metrics, self.sites, self._replays = metrics, sites_of(self.stacks, sites), Replays(self.model)

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
                sites = stack.having(self.sites)
                collector.watch = hooks.enter_context(stack.watch(observer, sites, on_error))
            yield

    def check(self, batch: RawBatch) -> None:
        """Refuse a batch with which the model cannot be called."""
        Reading.of(self.model, self.stacks).check(batch)

    def prepared(self, batch: RawBatch, sequences: int | None) -> RawBatch:
        """The part of a batch of the whole model that a look takes."""
        batch_first = all(stack.batch_first for stack in self.stacks)
        return fitting(shortened(batch, sequences) if batch_first else batch, self.entry, self.model)

    def begin(self, collectors: Sequence[Collector], batch: RawBatch) -> None:
        """Have collectors expect the tokens of a batch that somebody else hands to the model."""
        _, inputs = self._call_for(batch)
        if any(is_open(stack, inputs) for stack in self.stacks):
            raise expected("blocks of which it is known what they read", "unknown ones", "the default probe")
        _expect(collectors, self._selections(inputs))

    def __call__(self, batch: RawBatch) -> list[Collector]:
        """One pass in evaluation mode; the model and everything random are afterwards as they were.

        No device is waited for: `settle` of the collectors does that.
        """
        ready = self._made_ready(batch)
        if (captured := self._replays.ready(batch)) is None and self._replays.possible:
            captured = self._capture(ready)
        if captured is None:
            return self._called(ready)
        found = captured()
        if self._replays.to_be_compared and not alike(found, called := self._called(ready)):
            self._replays.give_up()
            return called
        return found

    def _called(self, ready: _Ready) -> list[Collector]:
        """A look by a call of the model."""
        collectors = self.collectors()
        _expect(collectors, ready.selections)
        with self._undisturbed(), self.watch(collectors, collectors):
            before = self._traces(ready.device)
            with self._replays.noticing_waits() as waits:
                call(ready.entry, ready.inputs)
                end(collectors)
            same = before == self._traces(ready.device)
        gathers = any(one.gatherings for one in collectors)
        self._replays.was_called(repeatable=same and not (waits or gathers or self._weights_change))
        return collectors

    def _capture(self, ready: _Ready) -> Captured | None:
        """The look as a graph, where that can be."""
        collectors = self.collectors()
        _expect(collectors, [_on(ready.device, selection) for selection in ready.selections])

        def look() -> None:
            call(ready.entry, ready.inputs)
            end(collectors)

        with self._undisturbed(), self.watch(collectors, collectors):
            return self._replays.capture(ready.batch, collectors, look, ready.device)

    def close(self) -> None:
        """Let go of what was kept for the next look."""
        self._ready = None
        self._replays.give_up()

    def _call_for(self, batch: RawBatch) -> tuple[nn.Module, RawBatch]:
        """What to call with a batch, and its inputs."""
        return entry_of(self.entry, self._beside, as_inputs(batch, self.core))

    def _selections(self, inputs: RawBatch) -> list[Selection]:
        """Which tokens to measure, for each stack."""
        return [
            select_tokens(inputs, self.tokens, self._special, stack.prefix_tokens, stack.reads) for stack in self.stacks
        ]

    def _made_ready(self, batch: RawBatch) -> _Ready:
        """A batch on the model's device; where it is the one of the last look, nothing is left to do."""
        device, last = self.device, self._ready
        if last is None or last.batch is not batch or last.device != device:
            entry, inputs = self._call_for(batch)
            if any(is_open(stack, inputs) for stack in self.stacks):
                with self._undisturbed():
                    self.stacks = tuple(first_look(entry, self.stacks, to_device(inputs, device)))
            for stack in self.stacks if last is None else ():
                look_inside(entry, stack, self.sites, to_device(inputs, device))
            chosen = self._selections(_masks_at_hand(inputs))
            last = self._ready = _Ready(batch, device, entry, to_device(inputs, device), chosen)
        return last

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        versions = None if self._weights_change else self._versions()
        with (
            any_kernel(),
            random_kept(self.device),
            tensors_kept(self.model, weights=self._weights_change, small=self._small),
            quiet_evaluation(self.model),
        ):
            try:
                yield
            finally:
                _reshard(self.model)
        if versions is not None and versions != self._versions():
            self._weights_change = True  # from now on they are put back

    def _traces(self, device: torch.device) -> tuple[Any, ...]:
        """What a pass may leave behind beside weights; nothing where no graph is wanted, and nobody asks.

        Of buffers which they are, and how often each was changed in place.
        """
        if not self._replays.wanted:
            return ()
        found = (one for module in modules_of(self.model) for one in module._buffers.values() if one is not None)
        return [(id(one), one._version) for one in found], drawn(device)

    def _versions(self) -> list[int]:
        """How often each weight was changed in place."""
        weights = (one for module in modules_of(self.model) for one in module._parameters.values())
        # A plain one is asked itself: it need not be looked into for what this process holds.
        return [
            one._version if type(one) is nn.Parameter else local(one)._version for one in weights if one is not None
        ]


def _expect(collectors: Sequence[Collector], selections: Sequence[Selection]) -> None:
    for collector, selection in zip(collectors, selections, strict=True):
        collector.begin(selection)


def end(collectors: Sequence[Collector]) -> None:
    """The pass is over; a stack that had no part in it stays empty."""
    for collector in collectors:
        if collector.touched or collector.alone:
            collector.end(0)


def _on(device: torch.device, selection: Selection) -> Selection:
    """The masks of a selection on a device, so that no pass has to bring them there."""
    selected, real = (None if mask is None else mask.to(device) for mask in (selection.selected_BN, selection.real_BN))
    return replace(selection, selected_BN=selected, real_BN=real)


def _masks_at_hand(inputs: RawBatch) -> RawBatch:
    """A batch whose masks and ids are on the CPU: there one can ask which tokens they select."""
    if not isinstance(inputs, Mapping):
        return inputs
    return {key: one.cpu() if isinstance(one, Tensor) and one.ndim <= 2 else one for key, one in inputs.items()}


def _reshard(model: nn.Module) -> None:
    """An FSDP2 root keeps its weights gathered until the backward pass, which a look does not have."""
    for module in sharded_modules(model):
        module.reshard()
