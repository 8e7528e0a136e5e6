from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from unsmooth.training.config import Schedule
from unsmooth.training.step import learning_rate


def rates(schedule: Schedule, highest: float, warmup: int, steps: int) -> list[float]:
    return [learning_rate(schedule, highest, warmup, steps, torch.tensor(step)).item() for step in range(steps)]


def of_torch(steps: int, make: Any) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler, found = make(optimiser), []
    for _ in range(steps):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


def test_cosine_is_torchs() -> None:
    wanted = of_torch(20, lambda one: lr_scheduler.CosineAnnealingLR(one, 20, eta_min=0.03))
    assert rates(Schedule(name="cosine", final=0.1), 0.3, 0, 20) == pytest.approx(wanted, rel=1e-12)


def test_linear_is_torchs() -> None:
    wanted = of_torch(20, lambda one: lr_scheduler.LinearLR(one, 1.0, 0.25, total_iters=20))
    assert rates(Schedule(name="linear", final=0.25), 0.3, 0, 20) == pytest.approx(wanted, rel=1e-12)


def test_constant_after_warmup_is_torchs() -> None:
    wanted = of_torch(12, lambda one: lr_scheduler.LambdaLR(one, lambda step: min(1.0, (step + 1) / 5)))
    assert rates(Schedule(name="constant"), 0.3, 5, 12) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("final", [0.0, 0.2])
def test_cosine_after_warmup_by_hand(final: float) -> None:
    wanted = [0.1 * (step + 1) / 4 for step in range(4)]
    wanted += [0.1 * (final + (1 - final) * (1 + math.cos(math.pi * (step - 4) / 16)) / 2) for step in range(4, 20)]
    assert rates(Schedule(name="cosine", final=final), 0.1, 4, 20) == pytest.approx(wanted, rel=1e-12)


def test_triangular_rises_and_falls_in_straight_lines() -> None:
    found = rates(Schedule(name="triangular"), 1.0, 0, 10)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2])
    early = rates(Schedule(name="triangular"), 1.0, 2, 10)
    assert early == pytest.approx([0.5, 1.0] + [1 - past / 8 for past in range(8)])


def test_a_run_that_is_all_warmup_never_passes_the_highest() -> None:
    assert rates(Schedule(name="cosine"), 1.0, 8, 4) == pytest.approx([1 / 8, 2 / 8, 3 / 8, 4 / 8])


def test_the_warm_up_may_begin_above_zero() -> None:
    found = rates(Schedule(name="triangular", initial=0.25), 2.0, 3, 9)
    rise = [2 * (0.25 + 0.75 * step / 3) for step in (1, 2, 3)]
    assert found == pytest.approx([*rise, *(2 * (1 - step / 6) for step in range(6))], rel=1e-12)
