"""The learning rate as a function of the step, as tensors, so that a captured step can work it out by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.training.config import Schedule


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
