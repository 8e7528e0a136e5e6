"""One training step on tensors that stay where they are: loss, gradients, clipping, AdamW, moving average, clock.

On one GPU the whole step is captured once as a CUDA graph and replayed; elsewhere the same two functions are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from unsmooth.training.added_losses import AddedLosses
from unsmooth.training.config import Config, Schedule
from unsmooth.training.place import Place
from unsmooth.training.task import Task


def learning_rate(schedule: Schedule, highest: float, warmup: int, steps: int, step: Tensor) -> Tensor:
    """The learning rate of step number `step`, from 0.

    During the warm-up it rises linearly from the initial share. After it, with p from 0 to 1 over the rest of the run:
    cosine ½(1 + cos πp), linear 1 − p, constant 1, all on top of the final share. Triangular rises to the highest at
    the end of the warm-up, or in the middle of the run where there is none, and falls linearly.

    >>> [round(learning_rate(Schedule(), 1.0, 2, 6, torch.tensor(step)).item(), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if schedule.name == "triangular" and not warmup:
        warmup = steps // 2
    at = step.to(torch.float64)
    past = ((at - warmup) / max(1, steps - warmup)).clamp(0, 1)
    down = {
        "cosine": lambda: (1 + torch.cos(math.pi * past)) / 2,
        "linear": lambda: 1 - past,
        "triangular": lambda: 1 - past,
        "constant": lambda: torch.ones_like(past),
    }[schedule.name]()
    falling = schedule.final + (1 - schedule.final) * down
    rising = schedule.initial + (1 - schedule.initial) * (at + 1) / max(1, warmup)
    return highest * torch.where(at < warmup, rising, falling)


NEVER = 2**62
"""The step in which nothing went wrong."""


class Step:
    """The state of a run on its device, and what moves it on.

    Args:
        task: Data to loss.
        model: What is trained, on its device; wrapped where there are several processes.
        config: The run.
        place: This process.
        steps: Length of the run.
        warmup: Steps of rising learning rate.
        adds_up: Whether a step may be several micro-batches, whose gradients are added up in a place that stays.
    """

    def __init__(
        self, task: Task, model: nn.Module, config: Config, place: Place, *, steps: int, warmup: int, adds_up: bool
    ) -> None:
        self.task, self.model, self.config, self.place = task, model, config, place
        self.steps, self.warmup, self.adds_up = steps, warmup, adds_up
        device = place.device
        self.batch = torch.zeros((), dtype=torch.int64, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.norm_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.first_bad = torch.full((), NEVER, dtype=torch.int64, device=device)
        self.passes = torch.ones((), dtype=torch.float32, device=device)
        self.rate = torch.zeros((), dtype=torch.float32, device=device)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.added = AddedLosses(config.losses, model)
        self.sharded = config.engine.sharding == "shard" and place.ranks > 1
        self.optimiser = self._optimiser()
        self.average = [one.detach().clone() for one in self.parameters] if config.ema else []

    def _optimiser(self) -> torch.optim.AdamW:
        settings = self.config.optimiser
        vectors = [one for one in self.parameters if one.ndim < 2 and not settings.decay_vectors]
        named = {id(one) for one in vectors}
        matrices = [one for one in self.parameters if id(one) not in named]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            # A tensor that the step itself fills; shards are updated by a kernel that takes a number.
            lr=settings.lr if self.sharded else self.rate,
            betas=(settings.betas[0], settings.betas[1]),
            eps=settings.eps,
            fused=not self.sharded,
            foreach=self.sharded,
            capturable=self.place.device.type == "cuda" and not self.sharded,
        )

    def accumulate(self) -> None:
        """One micro-batch: gradients are added to those that are there."""
        with self.arithmetic():
            loss = self.loss(self.model, self.batch)
        loss.backward()  # type: ignore[no-untyped-call]
        kept = loss.detach().to(torch.float64)
        self.loss_sum += kept / self.passes
        self.first_bad.copy_(_watched(self.first_bad, torch.isfinite(kept), self.step))
        self.batch += 1

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The task's loss over a micro-batch, with the losses of hidden states that the run asks for."""
        return self.added.total(self.task.loss(model, batch))

    @torch.no_grad()
    def update(self) -> None:
        """Use the gradients that were added up, and forget them."""
        gradients = [one.grad for one in self.parameters if one.grad is not None]
        norm = get_total_norm(gradients, foreach=True)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        shrink, norm, rate, first_bad = self.decided(norm, self.passes, self.step, self.first_bad)
        self.first_bad.copy_(first_bad)
        # A loss may be NaN on one process alone: all of them must leave their weights as they are, or none.
        self.place.lowest(self.first_bad)
        torch._foreach_mul_(_local(gradients), shrink.to(gradients[0].dtype))
        self.rate.copy_(rate)
        self._move()
        self.norm_sum += norm
        if self.average:
            torch._foreach_lerp_(_local(self.average), _local(self.parameters), 1 - self.config.ema)
        self.step += 1

    def decided(
        self, norm: Tensor, passes: Tensor, step: Tensor, first_bad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The numbers of one update: what gradients are multiplied by, their norm, learning rate, first bad step.

        A function of its own, because torch.compile makes one kernel of what would be fifty.
        """
        norm = norm / passes
        clip, settings = self.config.optimiser.clip, self.config
        shrink = torch.clamp(clip / (norm + 1e-6), max=1.0) if clip else torch.ones_like(norm)
        rate = learning_rate(settings.schedule, settings.optimiser.lr, self.warmup, self.steps, step)
        return shrink / passes, norm, rate, _watched(first_bad, torch.isfinite(norm), step)

    def _move(self) -> None:
        """AdamW, unless something was not finite: then the weights stay those of the last good step."""
        if self.sharded:
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate.item()
            if self.first_bad.item() == NEVER:
                self.optimiser.step()
        else:
            # The name under which torch's gradient scaler tells a fused optimiser to leave everything as it is.
            self.optimiser.found_inf = (self.first_bad != NEVER).to(torch.float32)  # type: ignore[attr-defined]
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=not self.adds_up)

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """bfloat16 products where the run asks for them."""
        lower = self.config.engine.precision == "bfloat16"
        with torch.autocast(self.place.device.type, dtype=torch.bfloat16, enabled=lower, cache_enabled=False):
            yield

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The moving average in the place of the weights."""
        kept = [one.detach().clone() for one in self.parameters]
        with torch.no_grad():
            torch._foreach_copy_(_local(self.parameters), _local(self.average))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(_local(self.parameters), _local(kept))

    def clocks(self) -> dict[str, Tensor]:
        """Every counter, by name."""
        names = ("batch", "step", "loss_sum", "norm_sum", "first_bad")
        return {name: getattr(self, name) for name in names}

    def moments(self) -> dict[int, dict[str, Any]]:
        """The optimiser's state of each parameter, by its place among them; empty before the first step."""
        state = self.optimiser.state
        return {index: state[one] for index, one in enumerate(self.parameters) if one in state}


def _watched(first_bad: Tensor, finite: Tensor, step: Tensor) -> Tensor:
    return torch.where(finite, first_bad, torch.minimum(first_bad, step))


@torch.no_grad()
def _local(tensors: list[Any]) -> list[Tensor]:
    """This process's shards, for arithmetic that goes element by element."""
    return [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
