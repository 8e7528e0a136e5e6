"""How a monitor comes to its numbers: by a fixed batch, or by hooks in the training passes themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from unsmooth.errors import expected
from unsmooth.models.hooks import Hooks
from unsmooth.monitor.probe import FirstBatch, Probe, end, kept, named
from unsmooth.scanning.collect import Collector
from unsmooth.scanning.data import RawBatch, first_of_pair


class Look(Protocol):
    """One way to look at a model in training."""

    @property
    def at_once(self) -> bool:
        """Whether it can be done now, whatever the step."""

    def expect(self, due: bool) -> None:
        """The next step begins; `due` says whether it will be looked at."""

    def read(self) -> list[Collector]:
        """Look."""

    def close(self) -> None:
        """Take every hook away."""


class FixedBatch:
    """Looks at one batch, again and again.

    Args:
        probe: Knows the model and what to measure.
        model: The model as it is called.
        given: A batch; "first" takes the first that the model is called with in training.
        sequences: How many of the first batch's sequences; None for a share of them.
    """

    def __init__(self, probe: Probe, model: nn.Module, given: Any, sequences: int | None) -> None:
        if isinstance(given, str) and given != "first":
            raise expected('a batch, "first" or None as probe', repr(given), 'probe="first"')
        self._probe, self._sequences = probe, sequences
        self._batch = None if isinstance(given, str) else kept(first_of_pair(given))
        if self._batch is not None:
            probe.check(self._batch)
        self._first = FirstBatch(model) if isinstance(given, str) else None
        self.offered: Any = None

    @property
    def at_once(self) -> bool:
        """With a batch, yes; before the first step one may have to be waited for."""
        return self._batch is not None

    def expect(self, due: bool) -> None:
        """Nothing to do."""

    def read(self) -> list[Collector]:
        """One pass."""
        if self._batch is None:
            self._batch = self._probe.prepared(self._found(), self._sequences)
        return self._probe(self._batch)

    def _found(self) -> RawBatch:
        assert self._first is not None
        if self._first.seen is not None:
            return self._first.seen
        if self.offered is not None:
            self._first.close()
            offered = self.offered() if callable(self.offered) else self.offered
            return kept(first_of_pair(offered))
        # The hook stays: a call may come before the next look.
        self._first.look_at_call()
        raise self._first.problem or expected(
            "the model to be called in training",
            "no call that was seen, as where torch.compile(model) is called in its place",
            "Monitor(what torch.compile gave), or probe=batch",
        )

    def close(self) -> None:
        """Take the hook away that waits for the first batch, and give memory free."""
        self._probe.close()
        if self._first is not None:
            self._first.close()


Offer = RawBatch | Callable[[], Any] | tuple[Any, ...] | list[Tensor]


class LivePass:
    """Measures the next forward pass in training.

    Evaluation passes in between are let go by, and so is what gradient checkpointing runs again. An error is kept, not
    raised: it is not the training's.

    Args:
        probe: Knows the model and what to measure.
    """

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.collectors: list[Collector] = []
        self.problem: Exception | None = None
        self._active = self._done = False
        self._hooks = Hooks()

    @property
    def at_once(self) -> bool:
        """No: a pass has to be waited for."""
        return False

    def expect(self, due: bool) -> None:
        """Hook in, if the next pass is to be measured."""
        self.close()
        if not due:
            return
        self.collectors, self.problem = [], None
        self._active = self._done = False
        try:
            self._hook_in()
        except Exception as error:
            self._fail(error)

    def _hook_in(self) -> None:
        self.collectors = self.probe.collectors()
        model, observers = self.probe.entry, [partial(self._see, collector) for collector in self.collectors]
        with Hooks(self._fail) as hook:
            hook.enter_context(self.probe.watch(self.collectors, observers, self._fail))
            hook(model.register_forward_pre_hook, self._enter, with_kwargs=True)
            hook(model.register_forward_hook, self._leave, always_call=True)
            self._hooks = hook.pop_all()

    def close(self) -> None:
        """Take all hooks away."""
        self._active = False
        self._hooks.close()

    def read(self) -> list[Collector]:
        """What was measured of the pass that was expected."""
        self.close()
        if self.problem is not None:
            raise self.problem
        if not self._done:
            raise expected("a training pass through the model", "none that was seen", "the default probe")
        return self.collectors

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._done or self.problem or not module.training:
            return
        self.probe.begin(self.collectors, named(module, args, kwargs))
        self._active = True

    def _see(self, collector: Collector, layer: int, site: str, tensor: Tensor) -> None:
        if not self._active:
            return
        # Modes that record a pass, as selective checkpointing does, must not see what is no part of it.
        with torch.no_grad(), _disable_current_modes(), torch.autocast(tensor.device.type, enabled=False):
            collector(layer, site, tensor.detach())

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._active:
            return
        self._active = False
        try:
            with torch.no_grad():
                end(self.collectors)
            self._done = True
        finally:
            self._hooks.close()

    def _fail(self, error: Exception) -> None:
        self._active = False
        self.problem = self.problem or error
