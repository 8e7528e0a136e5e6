from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.training.tiny_runs import tiny
from unsmooth.training.config import Config
from unsmooth.training.place import Place
from unsmooth.training.step import NEVER, Step
from unsmooth.training.task import Task

PLACE = Place(torch.device("cpu"))


class Regression(Task):
    """Least squares on rows that are numbered by micro-batch: the gradient is known by hand."""

    name = "regression"
    batches = 100  # type: ignore[assignment]

    def __init__(self, config: Config, share: int) -> None:
        super().__init__(config, PLACE, share)
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(96, 3, dtype=torch.float64, generator=generator)
        self.y = torch.randn(96, 2, dtype=torch.float64, generator=generator)

    def network(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return nn.Linear(3, 2).double()

    def rows(self, batch: Tensor) -> Tensor:
        return batch * self.share + torch.arange(self.share)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        chosen = self.rows(batch)
        return (model(self.x[chosen]) - self.y[chosen]).square().mean()

    def begin(self, batch: int) -> None: ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}

    def probe(self, sequences: int) -> Any: ...

    def describe(self) -> dict[str, Any]:
        return {}


def step_of(share: int = 4, adds_up: bool = False, steps: int = 6, **changes: Any) -> Step:
    config = tiny(engine__precision="float64", schedule__warmup=0.0, steps=steps, **changes)
    task = Regression(config, share)
    return Step(task, task.network(), config, PLACE, steps=steps, warmup=0, adds_up=adds_up)


def take(step: Step, passes: int = 1) -> None:
    step.passes.fill_(passes)
    for _ in range(passes):
        step.accumulate()
    step.update()


class NumpyAdamW:
    """Algorithm 2 of arXiv 1711.05101, in numpy and float64."""

    def __init__(self, values: dict[str, numpy.ndarray], decays: dict[str, float], betas: tuple[float, float]) -> None:
        self.values, self.decays, self.betas = values, decays, betas
        self.m = {name: numpy.zeros_like(value) for name, value in values.items()}
        self.v = {name: numpy.zeros_like(value) for name, value in values.items()}
        self.t = 0

    def step(self, gradients: dict[str, numpy.ndarray], lr: float, eps: float) -> None:
        self.t += 1
        first, second = self.betas
        for name, g in gradients.items():
            self.m[name] = first * self.m[name] + (1 - first) * g
            self.v[name] = second * self.v[name] + (1 - second) * g**2
            m, v = self.m[name] / (1 - first**self.t), self.v[name] / (1 - second**self.t)
            self.values[name] = self.values[name] * (1 - lr * self.decays[name]) - lr * m / (numpy.sqrt(v) + eps)


def by_hand(task: Regression, weight: numpy.ndarray, bias: numpy.ndarray, rows: list[int]) -> dict[str, numpy.ndarray]:
    x, y = task.x.numpy()[rows], task.y.numpy()[rows]
    error = x @ weight.T + bias - y
    scale = 2 / error.size
    return {"weight": scale * error.T @ x, "bias": scale * error.sum(0)}


@pytest.mark.parametrize("decay_vectors", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_steps_are_adamw_as_published(decay_vectors: bool, clip: float) -> None:
    step = step_of(optimiser__decay_vectors=decay_vectors, optimiser__clip=clip, optimiser__weight_decay=0.3, ema=0.8)
    task = step.task
    assert isinstance(task, Regression)
    values = {name: one.detach().numpy().copy() for name, one in step.model.named_parameters()}
    average = {name: value.copy() for name, value in values.items()}
    adamw = NumpyAdamW(values, {"weight": 0.3, "bias": 0.3 if decay_vectors else 0.0}, (0.9, 0.999))
    norms = 0.0
    for number in range(6):
        take(step)
        # The rate is kept in float32, as captured steps need it.
        rate = float(numpy.float32(0.01 * (1 + math.cos(math.pi * number / 6)) / 2))
        gradients = by_hand(task, adamw.values["weight"], adamw.values["bias"], list(range(4 * number, 4 * number + 4)))
        norm = math.sqrt(sum(float((one**2).sum()) for one in gradients.values()))
        norms += norm
        scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        adamw.step({name: one * scale for name, one in gradients.items()}, rate, 1e-8)
        average = {name: 0.8 * value + 0.2 * adamw.values[name] for name, value in average.items()}
    for (name, one), kept in zip(step.model.named_parameters(), step.average, strict=True):
        numpy.testing.assert_allclose(one.detach().numpy(), adamw.values[name], rtol=1e-11, atol=1e-13)
        numpy.testing.assert_allclose(kept.detach().numpy(), average[name], rtol=1e-11, atol=1e-13)
    assert not any(kept.requires_grad for kept in step.average), "or every step would keep the one before"
    assert float(step.norm_sum) == pytest.approx(norms, rel=1e-11)
    assert int(step.step) == int(step.batch) == 6


def test_clipping_is_torchs() -> None:
    step, twin = step_of(optimiser__clip=0.05), step_of(optimiser__clip=0.0)
    step.accumulate()
    twin.accumulate()
    seen: list[Tensor] = []
    step._move = lambda: seen.extend(one.grad.clone() for one in step.parameters if one.grad is not None)  # type: ignore[method-assign]
    step.update()
    torch.nn.utils.clip_grad_norm_(twin.parameters, 0.05)
    for mine, other in zip(seen, twin.parameters, strict=True):
        torch.testing.assert_close(mine, other.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize("passes", [(4, 4, 4), (1, 2, 4)])
def test_micro_batches_add_up_to_one_large_batch(passes: tuple[int, ...]) -> None:
    small = step_of(share=4, adds_up=True, steps=3)
    for number in passes:
        take(small, number)
    large = step_of(share=4, steps=3)
    task, start = large.task, 0
    assert isinstance(task, Regression)
    for number in passes:  # each step in one piece, as large as its micro-batches together
        task.share = 4 * number
        task.rows = lambda batch, start=start, share=task.share: torch.arange(start, start + share)  # type: ignore[misc, method-assign]
        start += task.share
        take(large)
    for mine, other in zip(small.parameters, large.parameters, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(small.loss_sum, large.loss_sum, rtol=1e-12, atol=0)
    torch.testing.assert_close(small.norm_sum, large.norm_sum, rtol=1e-10, atol=0)
    assert int(small.batch) == sum(passes)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_moves_from_the_first_bad_step_on(value: float) -> None:
    step = step_of(ema=0.5)
    task = step.task
    assert isinstance(task, Regression)
    for _ in range(2):
        take(step)
    assert int(step.first_bad) == NEVER
    before = [one.detach().clone() for one in step.parameters]
    moments = {index: {key: kept.clone() for key, kept in one.items()} for index, one in step.moments().items()}
    task.y[2 * 4 + 1] = value
    for _ in range(3):
        take(step)
    assert int(step.first_bad) == 2
    assert all(torch.equal(one, kept) for one, kept in zip(step.parameters, before, strict=True))
    for index, one in step.moments().items():
        assert all(torch.equal(kept, moments[index][key]) for key, kept in one.items())
    assert all(torch.isfinite(one).all() for one in step.average)


def test_the_average_stands_in_and_goes_away_again() -> None:
    step = step_of(ema=0.5)
    for _ in range(3):
        take(step)
    before = [one.detach().clone() for one in step.parameters]
    with step.averaged():
        assert all(torch.equal(one, kept) for one, kept in zip(step.parameters, step.average, strict=True))
    assert all(torch.equal(one, kept) for one, kept in zip(step.parameters, before, strict=True))
