from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.block import remedies_of

HOST = BY_NAME["llama"]


def model_with(name: str, checkpointed: bool = True, **options: Any) -> Any:
    model = remedies.apply(HOST.model(), name, **options).train()
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def loss_of(model: Any, seed: int = 0) -> Tensor:
    logits = model(**HOST.call(HOST.inputs(seed=seed)), use_cache=False).logits
    return (logits - torch.randn(logits.shape, generator=torch.Generator().manual_seed(9))).square().mean()


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", ["deescalate", "attnscale", "sharpen"])
def test_blocks_may_run_again_after_other_passes(name: str) -> None:
    found = {}
    for checkpointed in (True, False):
        model = model_with(name, checkpointed)
        first, second = loss_of(model, 0), loss_of(model, 1)
        (first + second).backward()
        found[checkpointed] = gradients(model)
    for parameter, gradient in found[True].items():
        torch.testing.assert_close(gradient, found[False][parameter], atol=1e-5, rtol=1e-4)


def test_blocks_that_share_are_told_when_another_pass_came_between() -> None:
    model = model_with("neutreno")
    first, second = loss_of(model, 0), loss_of(model, 1)
    second.backward()  # the last pass is still there
    with pytest.raises(UnsmoothError, match="the backward pass before the next forward pass"):
        first.backward()


def test_blocks_that_share_are_told_when_their_gradient_would_be_lost() -> None:
    model = model_with("neutreno", checkpointed=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    embeddings = model.get_input_embeddings()(HOST.inputs()).detach().requires_grad_()
    loss = model(inputs_embeds=embeddings, use_cache=False).logits.square().mean()
    with pytest.raises(UnsmoothError, match="use_reentrant=False"):
        loss.backward()


def test_several_passes_without_checkpointing() -> None:
    model = model_with("neutreno", checkpointed=False)
    twins = [copy.deepcopy(model) for _ in range(2)]
    (loss_of(model, 0) + loss_of(model, 1)).backward()
    for seed, twin in enumerate(twins):
        loss_of(twin, seed).backward()
    one, two = map(gradients, twins)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, one[name] + two[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("trained", [True, False])
def test_nothing_of_a_pass_without_gradients_is_kept(trained: bool) -> None:
    model = model_with("neutreno", checkpointed=False)
    with torch.set_grad_enabled(trained):
        model(**HOST.call(HOST.inputs()))
    homes = [home for module in model.modules() if (home := remedies_of(module)) is not None]
    assert all("call" not in home.now.held for home in homes)
    assert all(bool(home.shared.held) is trained for home in homes)
    assert all(not home.shared.held for home in map(remedies_of, copy.deepcopy(model).model.layers))
