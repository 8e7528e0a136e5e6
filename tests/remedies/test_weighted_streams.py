"""Blocks that multiply their stream too before they add a branch: what is found of them, and what remedies do."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.models.hand_blocks import DIM, HandBlock, Kind, hand_block, stream
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection
from unsmooth.models.wire import parts_of


class ByDepth(HandBlock):
    """√((n−1)/n)·x + f(x)/√n, n counting the additions of a stack."""

    number = 2

    def forward(self, x: Tensor) -> Tensor:
        for n, norm, branch in ((self.number, self.norm1, self.attn), (self.number + 1, self.norm2, self.mlp)):
            x = ((n - 1) / n) ** 0.5 * x + branch(norm(x)) / n**0.5
        return x


class ByChannel(HandBlock):
    """w ⊙ x + f(x), w a weight of the block."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.keep1 * x + self.attn(self.norm1(x))
        return self.keep2 * x + self.mlp(self.norm2(x))


class Stack(nn.Module):
    def __init__(self, kind: type[HandBlock]) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for layer in range(2):
            block: Any = kind(Kind(heads=3, key_value=3))
            block.load_state_dict(hand_block(Kind(heads=3, key_value=3)).state_dict())
            block.number = 2 * layer + 2
            if kind is ByChannel:
                draw = torch.Generator().manual_seed(layer)
                block.keep1, block.keep2 = (nn.Parameter(torch.rand(DIM, generator=draw) + 0.3) for _ in range(2))
            self.layers.append(block.eval())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def by_hand(model: Stack, x: Tensor) -> Tensor:
    """In float64, with half of the mean of attention's branches taken out and the MLPs' halved."""
    x = x.double()
    for block in copy.deepcopy(model).double().layers:
        n: Any = block.number
        factors = [(((m - 1) / m) ** 0.5, m**-0.5) for m in (n, n + 1)]
        if isinstance(block, ByChannel):
            factors = [(block.keep1, 1.0), (block.keep2, 1.0)]
        branch = block.attn(block.norm1(x))
        x = factors[0][0] * x + factors[0][1] * (branch - 0.5 * branch.mean(dim=1, keepdim=True))
        x = factors[1][0] * x + factors[1][1] * 0.5 * block.mlp(block.norm2(x))
    return x


@torch.no_grad()
@pytest.mark.parametrize("kind", [ByDepth, ByChannel])
def test_branches_are_edited_as_they_are_added(kind: type[HandBlock]) -> None:
    model, x = Stack(kind), stream()
    plain = model(x)
    unsmooth.apply(model, "deescalate", blocks="layers.*", tau=0.5)
    unsmooth.apply(model, "layerscale", blocks="layers.*", start=1.0)
    for layer in model.layers:
        layer.unsmooth.layerscale.gamma[1].fill_(0.5)
    wanted = by_hand(model_without(model), x)
    torch.testing.assert_close(model(x).double(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    assert torch.equal(unsmooth.undo(model)(x), plain)


def model_without(model: Stack) -> Stack:
    return unsmooth.undo(copy.deepcopy(model))


def test_what_is_found() -> None:
    model = Stack(ByDepth)
    unsmooth.apply(model, "deescalate", blocks="layers.*")
    for n, layer in zip((2, 4), model.layers, strict=True):  # one kind, each with numbers of its own
        wiring = parts_of(layer).wiring
        assert wiring is not None
        assert wiring.keeps == pytest.approx((((n - 1) / n) ** 0.5, (n / (n + 1)) ** 0.5), rel=1e-5)
        assert wiring.scales == pytest.approx((n**-0.5, (n + 1) ** -0.5), rel=1e-5)
    model = Stack(ByChannel)
    unsmooth.apply(model, "deescalate", blocks="layers.*")
    wiring = parts_of(model.layers[1]).wiring
    assert wiring is not None
    assert (wiring.keeps, wiring.scales) == (("keep1", "keep2"), (1.0, 1.0))
    assert value_projection(model, 0, blocks="layers.*").unseen[:1] == ("the weight 'keep1' on the stream",)


@torch.no_grad()
def test_eigenvalues_are_relative_to_what_the_stream_is_multiplied_by() -> None:
    model = Stack(ByDepth).double()
    unsmooth.apply(model, "sharpen", blocks="layers.*", start="fresh", size=1.0)
    for n, block in zip((2, 4), model.layers, strict=True):
        w_v, w_o = (one.weight.detach().numpy() for one in (block.attn.to_v, block.attn.out))
        found = np.linalg.eigvals(w_v.T @ w_o.T / n**0.5) / ((n - 1) / n) ** 0.5
        np.testing.assert_allclose(found.real, -1.0, atol=1e-5)


@pytest.mark.parametrize(("name", "options", "why"), [
    ("sharpen", {}, "it multiplies the stream by 'keep1'"),
    ("deescalate", {"place": "residual"}, "and the block multiplies it before"),
])  # fmt: skip
def test_what_rests_on_the_stream_as_it_was_is_refused(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsmoothError, match=why):
        unsmooth.apply(Stack(ByChannel), name, blocks="layers.*", **options)


class Beside(HandBlock):
    """x + 0.3·attention + 1.7·(a linear map of its own), both of one norm, and then the MLP."""

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm1(x)
        x = x + 0.3 * self.attn(read) + 1.7 * self.beside(read)
        return x + self.mlp(self.norm2(x))


@torch.no_grad()
def test_branches_that_are_added_at_once_each_have_a_number() -> None:
    torch.manual_seed(0)
    blocks: list[Any] = [Beside(Kind(heads=3, key_value=3)) for _ in range(2)]
    for block in blocks:
        block.load_state_dict(hand_block(Kind(heads=3, key_value=3)).state_dict())
        block.beside = nn.Linear(DIM, DIM)
    model, x = nn.Sequential(*blocks).eval(), stream()
    wanted = x.double()
    for block in copy.deepcopy(model).double():
        read = block.norm1(wanted)
        wanted = wanted + 0.3 * 0.5 * block.attn(read) + 1.7 * 0.25 * block.beside(read)
        wanted = wanted + 2.0 * block.mlp(block.norm2(wanted))
    unsmooth.apply(model, "layerscale", blocks="*", start=1.0)
    wiring = parts_of(model[0]).wiring
    assert wiring is not None
    assert wiring.scales == pytest.approx((0.3, 1.0), rel=1e-5)
    for block in model:
        block.unsmooth.layerscale.gamma.copy_(torch.tensor([0.5, 2.0, 0.25])[:, None].expand(-1, DIM))
    torch.testing.assert_close(model(x).double(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


def test_a_stream_times_a_weight_of_one_number_is_not_taken_for_a_constant() -> None:
    class Learned(HandBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = self.share.sigmoid() * x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    block: Any = Learned(Kind(heads=3, key_value=3))
    block.load_state_dict(hand_block(Kind(heads=3, key_value=3)).state_dict())
    block.share = nn.Parameter(torch.tensor([0.4]))
    with pytest.raises(UnsmoothError, match="may come of weights of one number"):
        unsmooth.apply(nn.Sequential(block.eval()), "deescalate", blocks="*")
