from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.remedies.by_hand import Edits, blocks_of, by_hand, exact, near, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection
from unsmooth.remedies import applied

# How many matrices a block has: queries, keys and values may be one.
COUNTS = {"bert": 6, "albert": 6, "torch_post": 4, "gpt2": 4, "neox_parallel": 4, "llama": 7, "vit": 6}


def matrices(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Every weight of the blocks with two dimensions: there are no others than linear maps in these."""
    return [
        (f"{index}.{key}", weight)
        for index, block in enumerate(blocks_of(model))
        for key, weight in block.named_parameters()
        if weight.ndim == 2
    ]


def size(weight: Tensor) -> float:
    return float(np.linalg.svd(weight.detach().double().numpy(), compute_uv=False)[0])


def read(model: nn.Module, key: str) -> Tensor:
    """What a module of a block reads as its weight."""
    index, path = key.split(".", 1)
    module, _, name = path.rpartition(".")
    return getattr(blocks_of(model)[int(index)].get_submodule(module), name)


def gammas(model: nn.Module) -> dict[str, nn.Parameter]:
    return {key: parameter for key, parameter in model.named_parameters() if key.endswith(".gamma")}


@pytest.mark.parametrize("name", COUNTS)
def test_every_weight_is_divided_by_its_largest_singular_value(name: str) -> None:
    plain = exact(name)
    model = unsmooth.apply(copy.deepcopy(plain), "sigma_reparam")
    assert len(matrices(plain)) == COUNTS[name] * len(blocks_of(plain)) == len(gammas(model))
    with torch.no_grad():
        for _, weight in matrices(plain):
            weight.div_(size(weight))
    near(name, streams(name, model)[1], by_hand(name, plain, Edits()))
    near(name, streams(name, model.train())[1], by_hand(name, plain, Edits()))
    near(name, value_projection(model, 0).summed(), value_projection(plain, 0).summed())


class ByHand:
    """The authors' steps for one weight: v along Wu, u along Wᵀv, σ = vᵀWu with both held fixed; u is kept."""

    def __init__(self, weight: Tensor, gamma: float) -> None:
        self.u = torch.linalg.svd(weight.detach())[2][0]
        self.gamma = torch.tensor([gamma], dtype=torch.float64, requires_grad=True)

    def __call__(self, weight: Tensor, training: bool) -> Tensor:
        fixed = weight.detach()
        v = fixed @ self.u
        v = v / v.norm()
        u = fixed.T @ v
        u = u / u.norm()
        if training:
            self.u = u
        return self.gamma * weight / (v @ weight @ u)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_follows_the_authors_steps_and_gradients(variant: str) -> None:
    model = unsmooth.apply(exact("torch_post"), "sigma_reparam", variant=variant).train()
    found = dict(matrices(model))
    hands = {key: ByHand(weight, 1.0 if variant == "paper" else size(weight)) for key, weight in found.items()}
    generator, last = torch.Generator().manual_seed(3), dict[str, Tensor]()
    for training in (True, True, False, True):
        for weight in found.values():  # far enough that a step lags behind
            weight.data.add_(0.2 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
        streams("torch_post", model.train(training))
        for key, weight in found.items():
            last[key] = hands[key](weight, training)
            torch.testing.assert_close(read(model, key), last[key], rtol=1e-11, atol=1e-12)
    for key, weight in found.items():
        push, grads = torch.randn(weight.shape, generator=generator, dtype=weight.dtype), []
        gamma = gammas(model)[_gamma_key(key)]
        for made, learned in ((read(model, key), gamma), (last[key], hands[key].gamma)):
            grads.append(torch.autograd.grad((made * push).sum(), (weight, learned)))
        torch.testing.assert_close(*grads)


def _gamma_key(key: str) -> str:
    index, path = key.split(".", 1)
    return f"layers.{index}.unsmooth.sigma_reparam.weights.{path.removesuffix('.weight').replace('.', '_')}.gamma"


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_largest_singular_value_becomes_gamma(variant: str) -> None:
    model = unsmooth.apply(BY_NAME["torch_post"].model(), "sigma_reparam", variant=variant).train()
    torch.manual_seed(0)
    with torch.no_grad():
        for _, weight in matrices(model):  # nothing is left of the vectors it began with
            weight.copy_(torch.randn_like(weight))
        for gamma in gammas(model).values():
            gamma.add_(0.5)
        for _ in range(100):
            model(BY_NAME["torch_post"].inputs(rows=1, tokens=2))
    learned = gammas(model)
    for (key, _), gamma in zip(matrices(model), learned.values(), strict=True):
        assert size(read(model, key)) == pytest.approx(gamma.item(), rel=1e-3), key


def test_training_moves_gamma_and_it_folds() -> None:
    host = BY_NAME["torch_post"]
    model = unsmooth.apply(host.model(), "sigma_reparam", variant="official").train()
    start = {key: gamma.detach().clone() for key, gamma in gammas(model).items()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        optimiser.zero_grad()
        (host.output(model, host.call(host.inputs())) - host.inputs(seed=2)).square().mean().backward()
        optimiser.step()
    moved = [float((gamma - start[key]).abs()) for key, gamma in gammas(model).items()]
    assert min(moved) > 0.0
    assert max(moved) > 1e-2
    (done,) = applied(model)
    assert len(done.report[0]) == 4
    model.eval()
    with torch.no_grad():
        wanted = host.output(model, host.call(host.inputs()))
        sizes = [gamma.item() for gamma in gammas(model).values()]
        unsmooth.fold(model)
        torch.testing.assert_close(host.output(model, host.call(host.inputs())), wanted, rtol=0, atol=1e-5)
    assert [size(weight) for _, weight in matrices(model)] == pytest.approx(sizes, rel=1e-2)


def test_a_pass_in_between_does_not_change_a_gradient() -> None:
    host = BY_NAME["torch_post"]
    grads = []
    for between in (False, True):
        model = unsmooth.apply(host.model(), "sigma_reparam").train()
        with torch.no_grad():
            for _, weight in matrices(model):
                weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
        loss = host.output(model, host.call(host.inputs())).square().mean()
        if between:
            host.output(model, host.call(host.inputs(seed=1)))
        loss.backward()
        grads.append([weight.grad for _, weight in matrices(model)])
    for alone, one in zip(*grads, strict=True):
        assert torch.equal(alone, one)


def test_undo_leaves_what_was_trained() -> None:
    model = unsmooth.apply(BY_NAME["gpt2"].model(), "sigma_reparam")
    with torch.no_grad():
        for _, weight in matrices(model):
            weight.mul_(1.25)
    wanted = {key: weight.detach().clone() for key, weight in matrices(model)}
    unsmooth.undo(model)
    for key, weight in matrices(model):
        assert weight is read(model, key)
        assert torch.equal(weight, wanted[key])


def test_half_precision_keeps_its_vectors() -> None:
    model = unsmooth.apply(BY_NAME["torch_post"].model().bfloat16(), "sigma_reparam").bfloat16()
    one = blocks_of(model)[0].unsmooth.sigma_reparam.weights["linear1"]
    assert one.left.dtype == one.right.dtype == torch.float32
    assert one.gamma.dtype == torch.bfloat16
    assert size(blocks_of(model)[0].linear1.weight.float()) == pytest.approx(1.0, abs=4e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "gpt2", "torch_pre"])
def test_neutral_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """A γ of eight bits is not σ, and γ/σ would round to less than one."""
    host, plain = BY_NAME[name], BY_NAME[name].model().to(dtype)
    inputs = host.inputs()
    call = host.call(inputs.to(dtype) if inputs.is_floating_point() else inputs)
    wanted = host.output(plain, call)
    model = unsmooth.apply(plain, "sigma_reparam", variant="official")
    assert torch.equal(host.output(model, call), wanted)
    again = unsmooth.apply(host.model().to(dtype), "sigma_reparam")
    again.load_state_dict(model.state_dict())
    assert torch.equal(host.output(again, call), wanted)


@pytest.mark.parametrize(
    ("spoil", "options", "message"),
    [
        (None, {"variant": "papers"}, "Try variant='paper'"),
        (lambda model: nn.init.zeros_(model.layers[1].linear2.weight), {}, "weight of 'linear2' is zero"),
        (lambda model: unsmooth.apply(model, "sharpen"), {}, "computes some of its weights already"),
    ],
)
def test_what_it_cannot_do_leaves_the_model_alone(spoil: Any, options: dict[str, Any], message: str) -> None:
    model = BY_NAME["torch_post"].model()
    if spoil is not None:
        spoil(model)
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.apply(model, "sigma_reparam", **options)
    before.check(model)
