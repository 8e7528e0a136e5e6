"""The shell for Hugging Face's Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

if TYPE_CHECKING:
    from unsmooth.monitor.core import Monitor


class TrainerMonitor(TrainerCallback):  # type: ignore[misc]
    """Begins, steps and ends a monitor with the training.

    Args:
        monitor: Its model may be None: the trainer's is taken.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer."""
        self.monitor.begin(kwargs.get("model"), state.global_step)
        loader = kwargs.get("train_dataloader")
        if loader is not None:
            # The trainer compiles a model from outside, and then its calls are not seen.
            self.monitor.offer(lambda: _first_rows(loader))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer after each step of the optimiser."""
        self.monitor.step(state.global_step)
        if self.monitor.should_stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer."""
        self.monitor.close()


def _first_rows(loader: Any) -> Any:
    """The first rows of a loader's data, collated, without going through the loader."""
    import torch

    from unsmooth.scanning.undisturbed import random_kept

    dataset, size = loader.dataset, loader.batch_size or 8
    with random_kept(torch.device("cpu")):
        return loader.collate_fn([dataset[index] for index in range(min(size, len(dataset)))])
