"""The shell for Lightning's Trainer, under either of its names."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models import find_stacks

if TYPE_CHECKING:
    from unsmooth.monitor.core import Monitor

_NAMES = ("lightning.pytorch", "pytorch_lightning")


class MonitorCallback(Protocol):
    """A Lightning callback that begins, steps and ends a monitor with the training."""

    monitor: Monitor


def lightning_callback(monitor: Monitor) -> MonitorCallback:
    """A callback for ``Trainer(callbacks=[…])``.

    The monitor's model may be None: the LightningModule is taken, or where it has no ``forward``, its part with blocks.
    """

    class Callback(_base()):  # type: ignore[misc]
        def __init__(self) -> None:
            self.monitor = monitor

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.monitor.begin(_called(pl_module), trainer.global_step)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            # A training_step that calls a part of the module is not seen by a hook on the whole.
            self.monitor.offer(batch)

        def on_train_batch_end(self, trainer: Any, *rest: Any, **more: Any) -> None:
            if trainer.global_step != self.monitor.steps:  # several batches may make one step
                self.monitor.step(trainer.global_step)
            if self.monitor.should_stop:
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.monitor.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.monitor.close("stopped")

    Callback.__name__ = Callback.__qualname__ = "MonitorCallback"
    made: MonitorCallback = Callback()
    return made


def _called(module: nn.Module) -> nn.Module:
    """What can be called: the module, or the one part with blocks where only that has a ``forward``."""
    owner = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    if owner.__module__.partition(".")[0] not in ("torch", "lightning", "pytorch_lightning"):
        return module
    parts = [child for child in module.children() if _has_blocks(child)]
    return parts[0] if len(parts) == 1 else module


def _has_blocks(module: nn.Module) -> bool:
    try:
        return bool(find_stacks(module))
    except UnsmoothError:
        return False


def _base() -> type:
    """The callback class of the Lightning that is in use; two packages of that name may be installed."""
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            found: type = import_module(name).Callback
        except ImportError:
            continue
        return found
    raise expected("Lightning", "an environment without it", 'pip install "unsmooth[lightning]"')
