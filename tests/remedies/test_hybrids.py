"""Stacks in which only some layers attend, or that are handed images, and what remedies change of them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.models.hand_blocks import DIM, HandBlock, Kind, hand_block, stream
from unsmooth.errors import UnsmoothError
from unsmooth.models import find_anatomy
from unsmooth.models.attention_maps import NoAttentionMap, watch_attention
from unsmooth.remedies.verbs import applied


class Recurrence(nn.Module):
    """A running mean that forgets, as state-space layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        state, steps = torch.zeros_like(x[:, 0]), []
        for step in self.into(x).unbind(1):
            state = 0.5 * state + step
            steps.append(state)
        return self.out(torch.stack(steps, dim=1))


class Alone(nn.Module):
    """A block of one branch: attention, or an MLP."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(DIM), mixer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def hybrid() -> Stack:
    """Layers 1 and 3 attend, 0 and 2 do not; each has an MLP."""
    layers = [hand_block(Kind(causal=True, heads=3, key_value=3)) for _ in range(4)]
    for layer in layers[::2]:
        layer.attn = Recurrence()  # type: ignore[assignment]
    return Stack(*layers).eval()


def single() -> Stack:
    """Layers of one branch each, of which layer 1 attends."""
    attention, mlps = hand_block(Kind(causal=True, heads=3, key_value=3)), [hand_block(Kind()).mlp for _ in range(2)]
    return Stack(Alone(mlps[0]), Alone(attention.attn), Alone(mlps[1])).eval()


def by_hand(model: Stack, x: Tensor, edit: Callable[[Tensor], Tensor], mlp: float = 1.0) -> Tensor:
    """In float64, with attention's branches edited, and the MLPs of blocks that attend times a number."""
    x = x.double()
    for layer in copy.deepcopy(model).double().layers:
        if isinstance(layer, Alone):
            branch = layer.mixer(layer.norm(x))
            x = x + (branch if isinstance(layer.mixer, nn.Sequential) else edit(branch))
            continue
        assert isinstance(layer, HandBlock)
        branch, attends = layer.attn(layer.norm1(x)), not isinstance(layer.attn, Recurrence)
        x = x + (edit(branch) if attends else branch)
        x = x + layer.mlp(layer.norm2(x)) * (mlp if attends else 1.0)
    return x


def without_half_of_the_mean_so_far(x: Tensor) -> Tensor:
    mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
    mean[:, 0] = 0.0  # a token that sees only itself is left alone
    return x - 0.5 * mean


def near(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


@torch.no_grad()
@pytest.mark.parametrize(
    ("build", "layers", "left"), [(hybrid, (1, 3), "4 layers only 1, 3"), (single, (1,), "3 layers")]
)
def test_only_layers_that_attend_are_changed(build: Callable[[], Stack], layers: tuple[int, ...], left: str) -> None:
    model, x = build(), stream()
    plain = model(x)
    with pytest.warns(UserWarning, match=f"deescalate: of {left}"):
        unsmooth.apply(model, "deescalate", blocks="layers.*", tau=0.5)
    assert [one.layers for one in applied(model)] == [layers]
    near(model(x), by_hand(model, x, without_half_of_the_mean_so_far))
    later = x.clone()
    later[:, -1] += 1.0
    assert torch.equal(model(later)[:, :-1], model(x)[:, :-1])
    assert torch.equal(unsmooth.undo(model)(x), plain)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:layerscale")
@pytest.mark.parametrize("build", [hybrid, single])
def test_every_branch_of_blocks_that_attend_is_scaled(build: Callable[[], Stack]) -> None:
    model, x = build(), stream()
    wanted = by_hand(model, x, lambda branch: 0.5 * branch, mlp=0.5)
    unsmooth.apply(model, "layerscale", blocks="layers.*", start=0.5)
    near(model(x), wanted)
    near(unsmooth.fold(model)(x), wanted)


class Conformer(nn.Module):
    """Half an MLP, attention, a convolution and half an MLP, with a norm at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = hand_block(Kind(heads=3, key_value=3)).attn
        self.first, self.last = (hand_block(Kind(key_value=n)).mlp for n in (2, 4))
        self.conv = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(5))

    def forward(self, x: Tensor, gammas: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
        parts = zip((self.first, self.attn, self.conv, self.last), (0.5, 1.0, 1.0, 0.5), gammas, strict=True)
        for norm, (part, times, gamma) in zip(self.norms, parts, strict=False):
            x = x + gamma * times * part(norm(x))
        return self.norms[4](x)


@torch.no_grad()
def test_every_branch_of_a_conformer_is_scaled() -> None:
    torch.manual_seed(0)
    model, x = Stack(Conformer(), Conformer()).eval(), stream()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape))
    plain, wanted = model(x), x.double()
    for layer in copy.deepcopy(model).double().layers:
        wanted = layer(wanted, (0.25, 0.5, 0.75, 2.0))
    unsmooth.apply(model, "layerscale", blocks="layers.*", start=1.0)
    assert torch.equal(model(x), plain)
    for layer in model.layers:
        edit = layer.unsmooth.layerscale
        assert edit.branches == ("attention", "mlp", "branch 0", "branch 1")
        edit.gamma.copy_(torch.tensor([0.5, 2.0, 0.25, 0.75])[:, None].expand(-1, DIM))
    near(model(x), wanted)
    with pytest.raises(UnsmoothError, match="a branch beside attention and MLP ends in no linear map"):
        unsmooth.fold(model)
    with pytest.raises(UnsmoothError, match="and a branch beside attention and MLP is added before"):
        unsmooth.apply(model, "deescalate", blocks="layers.*", place="residual")
    assert torch.equal(unsmooth.undo(model)(x), plain)


@pytest.mark.filterwarnings("ignore:deescalate")
def test_which_layers() -> None:
    model = unsmooth.apply(hybrid(), "deescalate", layers=slice(0, 2))
    assert [one.layers for one in applied(model)] == [(1,)]
    for layers, got in (([0, 1], "0, a block without attention"), (slice(0, 1), "slice")):
        with pytest.raises(UnsmoothError, match=rf"Expected layers that attend but got {got}.*layers=\[1, 3\]"):
            unsmooth.apply(hybrid(), "deescalate", layers=layers)


def test_maps_are_those_of_layers_that_attend() -> None:
    anatomy, x = find_anatomy(hybrid()), stream()
    seen, missing = dict[int, Tensor](), list[int | None]()
    with watch_attention(anatomy, seen.__setitem__, lambda error: missing.append(error.layer)):
        anatomy.model(x)
    assert sorted(seen) == [2, 4]
    assert missing == [1, 3]
    assert all(not maps.triu(1).any() for maps in seen.values())
    with pytest.raises(NoAttentionMap, match="at layer 1"), watch_attention(anatomy, seen.__setitem__):
        anatomy.model(x)


def test_a_stack_without_attention_says_so() -> None:
    model = Stack(*(Alone(hand_block(Kind()).mlp) for _ in range(3)))
    with pytest.raises(UnsmoothError, match="no attention map that torch can see"):
        unsmooth.apply(model, "deescalate", blocks="layers.*")


class FlatAttention(nn.Module):
    """Attention over all places of an image, which gives an image."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.inner = attention

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.flatten(1, 2))
        return out.unflatten(1, x.shape[1:3])


@torch.no_grad()
def test_images_are_edited_as_the_tokens_of_their_places() -> None:
    blocks = [hand_block(Kind(heads=3, key_value=3)) for _ in range(2)]
    for block in blocks:
        block.attn = FlatAttention(block.attn)  # type: ignore[assignment]
    model, x = Stack(*blocks).eval(), torch.randn(2, 3, 4, DIM, generator=torch.Generator().manual_seed(2))
    plain, wanted = model(x), x.double()
    for layer in copy.deepcopy(model).double().layers:
        branch = layer.attn(layer.norm1(wanted))
        wanted = wanted + branch - 0.5 * branch.mean(dim=(1, 2), keepdim=True)
        wanted = wanted + layer.mlp(layer.norm2(wanted))
    unsmooth.apply(model, "deescalate", blocks="layers.*", batch=x, tau=0.5)
    near(model(x), wanted)
    assert torch.equal(unsmooth.undo(model)(x), plain)
