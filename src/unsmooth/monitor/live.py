"""Reading the training pass itself: hooks for one forward pass, which change nothing in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from unsmooth.errors import expected
from unsmooth.models.hooks import Hooks
from unsmooth.monitor.batch import named
from unsmooth.monitor.probe import Probe, end
from unsmooth.scanning.collect import Collector


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
