"""Tiny trainings that tests of the monitor share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unsmooth import Monitor

STEPS, BATCH, TOKENS, DIM = 6, 8, 5, 16


class Net(nn.Module):
    """A torch encoder between a batch norm, which counts what it sees, and dropout, which draws random numbers."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, 2, 32, dropout=0.2, batch_first=True)
        self.norm = nn.BatchNorm1d(DIM)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to (batch, 1)."""
        out: Tensor = self.head(self.encoder(self.norm(x.mT).mT).mean(dim=1))
        return out


def make(seed: int = 0, depth: int = 3) -> Net:
    """The same weights for the same seed."""
    torch.manual_seed(seed)
    return Net(depth)


def train(
    model: nn.Module,
    monitor: Monitor | None = None,
    called: nn.Module | None = None,
    between: Callable[[int], Any] = lambda step: None,
    steps: int = STEPS,
) -> dict[str, Tensor]:
    """Train on random batches drawn from torch's, numpy's and Python's generators; the state afterwards.

    Args:
        model: Whose parameters are trained.
        monitor: Steps with the training.
        called: What is called, such as the model compiled.
        between: Called after every step.
        steps: How many.
    """
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for step in range(steps):
        x = torch.randn(BATCH, TOKENS, DIM) + np.random.rand() + random.random()
        (model if called is None else called)(x).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        if monitor is not None:
            monitor.step()
        between(step)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """To the bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def hooks(model: nn.Module) -> int:
    """How many hooks its modules have."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_always_called")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
