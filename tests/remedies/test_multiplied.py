"""Blocks that multiply their branches before they add them: edits meet what is added, and H has the factor in it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.models.hand_blocks import DIM, HEAD_DIM, HandBlock, Kind, hand_block, stream
from unsmooth.errors import UnsmoothError

KINDS = {
    "a module": Kind(gain="module"),
    "a weight": Kind(gain="weight"),
    "a weight of one number": Kind(gain="number"),
    "its tanh": Kind(gain="tanh"),
    "a number": Kind(scale=0.22),
    "a negative number": Kind(scale=-3.0),
}


class Stack(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(hand_block(kind) for _ in range(2))
        with torch.no_grad():  # the factors of blocks of one kind are not the same
            for name, parameter in self.blocks[1].named_parameters():
                parameter.mul_(-0.7 if "gamma" in name else 0.9)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def factor(block: HandBlock, number: int) -> Tensor:
    """What the block multiplies a branch by."""
    gain = torch.ones(DIM, dtype=torch.double)
    if block.kind.gain == "module":
        gain = getattr(block, f"ls{number}").gamma.detach().double()
    elif block.kind.gain is not None:
        gain = gain * getattr(block, f"gamma{number}").detach().double()
    return (gain.tanh() if block.kind.gain == "tanh" else gain) * block.kind.scale


def by_hand(model: Stack, x: Tensor, attention: Callable[..., Tensor], mlp: Callable[[Tensor], Tensor]) -> Tensor:
    """The stack in float64, each branch changed where it is added."""
    exact, x = copy.deepcopy(model).double(), x.double()
    for block in exact.blocks:
        assert isinstance(block, HandBlock)
        x = x + attention(factor(block, 1) * block.attn(block.norm1(x)), x)
        x = x + mlp(factor(block, 2) * block.mlp(block.norm2(x)))
    return x


def near(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


def without_half_the_mean(x: Tensor) -> Tensor:
    return x - 0.5 * x.mean(dim=1, keepdim=True)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_mean_is_taken_out_of_what_is_added(kind: Kind) -> None:
    model, x = Stack(kind), stream()
    plain = model(x)
    wanted = {
        "attention": by_hand(model, x, lambda branch, x: without_half_the_mean(branch), lambda branch: branch),
        "residual": by_hand(model, x, lambda branch, x: without_half_the_mean(x + branch) - x, lambda branch: branch),
    }
    for place, stream_BND in wanted.items():
        unsmooth.apply(model, "deescalate", tau=0.5, place=place)
        near(model(x), stream_BND)
        assert not torch.allclose(model(x), plain)
        assert torch.equal(unsmooth.undo(model)(x), plain)
        unsmooth.apply(model, "deescalate", tau=0.0, place=place)
        assert place == "residual" or torch.equal(model(x), plain)
        near(model(x), plain.double())
        unsmooth.undo(model)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_layer_scale_on_top_of_a_factor_is_folded(kind: Kind) -> None:
    model, x = Stack(kind), stream()
    wanted = by_hand(model, x, lambda branch, x: 0.5 * branch, lambda branch: 0.5 * branch)
    unsmooth.apply(model, "layerscale", start=0.5)
    near(model(x), wanted)
    near(unsmooth.fold(model)(x), wanted)


def eigenvalues(block: HandBlock) -> np.ndarray:
    """Of Σ W_V W_O diag(γ), from the weights as they lie in the block."""
    w_v, w_o = (one.weight.detach().double().numpy() for one in (block.attn.to_v, block.attn.out))
    return np.linalg.eigvals(w_v.T @ w_o.T * factor(block, 1).numpy())


@torch.no_grad()
@pytest.mark.parametrize("basis", ["schur", "general", "orthogonal", "gram"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_eigenvalues_behind_a_factor_are_in_the_interval(kind: Kind, basis: str) -> None:
    narrow = Kind(gain=kind.gain, scale=kind.scale, heads=3, key_value=3)  # as many columns as the stream is wide
    model, x = Stack(narrow).double(), stream().double()
    before, plain = [eigenvalues(block) for block in model.blocks], model(x)
    assert max(found.real.max() for found in before) > 0.1
    unsmooth.apply(model, "sharpen", basis=basis)
    for turned in (False, True):  # training may move the factor, and past zero
        for block in model.blocks:
            for name, parameter in block.named_parameters():
                parameter.mul_(-1.3 if turned and "gamma" in name else 1.0)
            found = eigenvalues(block)
            # Nine zeros far from symmetric are, in double too, no more than near zero.
            assert -1.0 - 1e-3 < found.real.min() < -0.05
            assert found.real.max() < 2e-2
            assert abs(found.imag).max() < 2e-2
    remedied = model(x)
    near(unsmooth.fold(model)(x), remedied)
    model = Stack(narrow).double()
    assert torch.equal(unsmooth.undo(unsmooth.apply(model, "sharpen", basis=basis))(x), plain)


@torch.no_grad()
def test_what_already_has_such_eigenvalues_stays_as_it_is() -> None:
    model, x = Stack(Kind(gain="weight", heads=3, key_value=3)).double(), stream().double()
    unsmooth.fold(unsmooth.apply(model, "sharpen", basis="orthogonal"))
    wanted = model(x)
    unsmooth.apply(model, "sharpen", basis="orthogonal")
    torch.testing.assert_close(model(x), wanted, rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_a_loaded_checkpoint_is_sharpened_behind_its_own_factor() -> None:
    kind = Kind(gain="weight", heads=3, key_value=3)
    plain, model, x = Stack(kind).double(), Stack(kind).double(), stream().double()
    for parameter in model.parameters():
        parameter.mul_(0.5)
    unsmooth.apply(model, "sharpen").load_state_dict(plain.state_dict())
    torch.testing.assert_close(model(x), unsmooth.apply(plain, "sharpen")(x), rtol=1e-6, atol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize(("name", "why"), [
    ("deescalate", "multiplies by zero before it is added"), ("sharpen", "its γ 'gamma1' has zeros"),
])  # fmt: skip
def test_a_factor_of_zero_is_refused(name: str, why: str) -> None:
    model = Stack(Kind(gain="weight", heads=3, key_value=3))
    block = model.blocks[1]
    assert isinstance(block, HandBlock)
    block.gamma1[HEAD_DIM] = 0.0
    with pytest.raises(UnsmoothError, match=why):
        unsmooth.apply(model, name)
