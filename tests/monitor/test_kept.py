"""What a look may change of a model, and what is put back: buffers of every kind, and modes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unsmooth.models.walk import modules_of
from unsmooth.scanning.calling import quiet_evaluation
from unsmooth.scanning.undisturbed import SmallOnes, tensors_kept

BUFFERS: dict[str, Callable[[], Tensor]] = {
    "a number": lambda: torch.tensor(3),
    "a few": lambda: torch.arange(6.0),
    "none": lambda: torch.zeros(0),
    "a mask": lambda: torch.tensor([[True, False], [False, True]]),
    "half": lambda: torch.ones(2, 3, dtype=torch.bfloat16),
    "turned": lambda: torch.arange(6.0).view(2, 3).t(),
    "large": lambda: torch.arange(10_000.0),
}


def model_of(names: list[str]) -> nn.Module:
    model = nn.Module()
    for number, name in enumerate(names):
        model.register_buffer(f"buffer_{number}", BUFFERS[name]())
    return model


def spoil(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in [*model.buffers(), *model.parameters()]:
            tensor.copy_(torch.zeros_like(tensor) if tensor.dtype == torch.bool else tensor + 1)


def held(model: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in (*model.buffers(), *model.parameters())]


def assert_as(model: nn.Module, before: list[Tensor]) -> None:
    for one, value in zip([*model.buffers(), *model.parameters()], before, strict=True):
        torch.testing.assert_close(one.detach(), value, rtol=0, atol=0)


@pytest.mark.parametrize("names", [[name] for name in BUFFERS] + [[*BUFFERS, *BUFFERS]], ids=lambda names: names[-1])
def test_buffers_of_every_kind_are_put_back_again_and_again(names: list[str]) -> None:
    model, small = model_of(names), SmallOnes()
    for _ in range(3):
        before, objects = held(model), list(model.buffers())
        with tensors_kept(model, weights=False, small=small):
            spoil(model)
        assert_as(model, before)
        assert all(one is other for one, other in zip(model.buffers(), objects, strict=True))
        spoil(model)  # as a training does between looks


def test_one_that_is_replaced_between_looks_or_moved_to_other_memory_is_seen() -> None:
    model, small = model_of(["a few", "a number"]), SmallOnes()
    with tensors_kept(model, weights=False, small=small):
        spoil(model)
    model.buffer_0 = torch.full((4,), 7.0)
    model.buffer_1.data = torch.tensor(11)
    before = held(model)
    with tensors_kept(model, weights=False, small=small):
        spoil(model)
    assert_as(model, before)


def test_weights_are_put_back_where_that_is_asked_and_a_pending_backward_pass_does_not_mind() -> None:
    model = nn.Linear(3, 2)
    loss = model(torch.ones(1, 3)).square().sum()
    before = held(model)
    with tensors_kept(model):
        for parameter in model.parameters():
            parameter.data.add_(1.0)
    assert_as(model, before)
    loss.backward()
    with tensors_kept(model, weights=False):
        spoil(model)
    assert not torch.equal(next(model.parameters()).detach(), before[0])


class Stubborn(nn.Module):
    """Leaves its child in training, whatever it is told, and counts how often it is."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.told = nn.Dropout(), list[bool]()

    def train(self, mode: bool = True) -> Stubborn:
        self.told.append(mode)
        self.training = mode
        return self


class Watchful(nn.Linear):
    """Sees every attribute that is set."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "training" and "seen" in vars(self):
            self.seen.append(value)


def test_modules_with_a_say_in_their_mode_are_asked() -> None:
    stubborn, watchful = Stubborn(), Watchful(2, 2)
    watchful.seen = []
    model = nn.Sequential(nn.Linear(2, 2), stubborn, nn.Sequential(watchful, nn.ReLU().eval()))
    modes = [module.training for module in modules_of(model)]
    with quiet_evaluation(model):
        assert [module for module in modules_of(model) if module.training] == [stubborn.child]
        assert not torch.is_grad_enabled()
    assert [module.training for module in modules_of(model)] == modes
    assert stubborn.told[0] is False
    assert watchful.seen == [False, True]


def test_modules_are_those_that_torch_finds_in_its_order() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(shared, nn.ReLU()), shared, nn.ModuleDict({"a": nn.Sequential(shared)}))
    model.register_module("nothing", None)
    assert modules_of(model) == list(model.modules())
