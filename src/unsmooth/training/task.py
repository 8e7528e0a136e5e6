"""What is learned: the part of a run that knows its data, its model's inputs and its loss; tasks/ has a file each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.networks.saving import build
from unsmooth.registry import Registry
from unsmooth.training.config import Config
from unsmooth.training.data.hold_out import HoldOutError
from unsmooth.training.place import Place


class Task(ABC):
    """Data to loss.

    `begin` runs on the host before every micro-batch, in order. `loss` is what may be captured in a CUDA graph: it
    finds its batch through the tensor `batch`, reads only tensors that stay where they are, draws random numbers only
    through `unsmooth.keyed`, and never asks the device for a value.

    Args:
        config: The run.
        place: This process.
        share: Samples that this process takes at a time.
    """

    name: ClassVar[str]
    better: ClassVar[Mapping[str, bool]] = {"loss": False}
    """The metrics of `evaluate`, and whether more is better."""

    holds_out: ClassVar[bool] = False
    """Whether it heeds ``data.hold_out``."""

    def __init__(self, config: Config, place: Place, share: int) -> None:
        if config.data.hold_out and not self.holds_out:
            got = f"{self.name!r}, which learns from all of them"
            raise HoldOutError(str(expected("a task that can hold samples out", got, "a hold-out of 0: the test set")))
        self.config, self.place, self.share = config, place, share
        self.dtype = torch.float64 if config.engine.precision == "float64" else torch.float32

    @property
    @abstractmethod
    def batches(self) -> int:
        """Micro-batches in an epoch."""

    def network(self) -> nn.Module:
        """The model with its first weights, on the CPU, without remedies."""
        return build(self.config.network, self.config.seed)

    @abstractmethod
    def begin(self, batch: int) -> None:
        """Get ready, on the host, for micro-batch number `batch` since the start of the run."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The mean loss over micro-batch number `batch` of this process, an int64 tensor that a graph counts up."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics by name, "loss" among them, over the test set or what is held out; the same on every process."""

    @abstractmethod
    def probe(self, sequences: int) -> Any:
        """What `unsmooth.scan` is to measure the model on."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The data, for the manifest: name, synthetic, digest, how many samples, and `held_out`."""

    def held_out(self) -> dict[str, Any]:
        """For `describe`: which share was held out of training and stands for the test set; nothing where none was."""
        share = self.config.data.hold_out
        return {"hold_out": share} if share else {}

    def fusible(self) -> list[nn.Module]:
        """Modules beside the model's blocks that are worth compiling."""
        return []

    def save_beside(self, folder: Path) -> None:  # noqa: B027 - most have nothing to write
        """Write what a user of the final weights needs too, such as a tokenizer."""

    def state(self) -> dict[str, Tensor]:
        """Tensors that the next micro-batch depends on, to be saved and restored in place; most tasks have none.

        They are those of all processes together, the same on each; so every process has to ask.
        """
        return {}


TASKS = Registry[type[Task]]("task")


def in_full(logits: Tensor) -> Tensor:
    """Logits in float32 at least: a softmax over many classes in bfloat16 loses the small ones."""
    return logits if logits.dtype == torch.float64 else logits.float()


def summed_over_processes(sums: Tensor, place: Place) -> Tensor:
    """Sums of all processes, on each of them."""
    if place.ranks > 1:
        torch.distributed.all_reduce(sums)
    return sums
