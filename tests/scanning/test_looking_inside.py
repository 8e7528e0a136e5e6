"""Sites inside blocks that only a scan's own data reach, what blocks tell one another, and models that draw."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import unsmooth
from unsmooth.models import find_stacks
from unsmooth.scanning.first_look import first_look

DIM = 12
IDS = torch.arange(21).reshape(3, 7)


class Block(nn.Module):
    """Pre-norm, with a shift that no standard pass knows; an MLP for the tokens of `queries`, another for the rest."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.norm1, self.attn_qkv, self.attn_out = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm2, self.mlp, self.mlp_queries = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, queries: int, shift: Tensor) -> Tensor:
        q, k, v = self.attn_qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.attn_out(scaled_dot_product_attention(q + shift, k, v))
        normed = self.norm2(x)
        if not queries:
            return x + self.mlp(normed)
        first, rest = self.mlp_queries(normed[:, :queries]), self.mlp(normed[:, queries:])
        return x + torch.cat([first, rest], dim=1)


class Model(nn.Module):
    """Words through blocks, behind so many learned queries; with noise or without."""

    def __init__(self, needs_shift: bool = False) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(40, DIM), nn.ModuleList(Block() for _ in range(3))
        self.needs_shift = needs_shift

    def forward(self, input_ids: Tensor, shift: Tensor | None = None, queries: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        if shift is None:
            if self.needs_shift:
                raise ValueError("no shift")
            shift = torch.zeros(DIM)
        if queries is not None:
            x = torch.cat([queries, x], dim=1)
        for layer in self.layers:
            x = layer(x, 0 if queries is None else queries.shape[1], shift[-1])
        return x


def made(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model.eval()


def scan(model: nn.Module, data: object, **options: object) -> unsmooth.Scan:
    return unsmooth.scan(model, data, metrics=["token_similarity"], progress=False, **options)  # type: ignore[arg-type]


def test_blocks_that_only_the_data_reach_have_their_sites() -> None:
    model, data = made(Model(needs_shift=True)), {"input_ids": IDS, "shift": torch.ones(3, DIM)}
    found = scan(model, data, sites="all")
    assert set(found.sites) == {"residual", "normed", "attention", "mid", "mlp"}
    seen: list[Tensor] = []
    handle = model.get_submodule("layers.1.mlp").register_forward_hook(lambda module, args, out: seen.append(out))
    with torch.no_grad():
        model(**data)
    handle.remove()
    [x_BND] = seen
    wanted = float((x_BND.sum(1).square().sum(-1) / (7 * x_BND.square().sum((1, 2)))).mean())
    frame = found.to_frame()
    assert float(frame[(frame["site"] == "mlp") & (frame["layer"] == 2)]["mean"].iloc[0]) == pytest.approx(wanted)


def test_sites_that_data_show_to_have_some_of_the_tokens_alone_are_left_out() -> None:
    """On words alone the MLP's branch is there; beside queries, no one module gives it, so that no sum shows."""
    model = made(Model())
    assert "mlp" in scan(model, {"input_ids": IDS}, sites="all").sites
    queries = torch.randn(3, 2, DIM, generator=torch.Generator().manual_seed(1))
    found = scan(model, {"input_ids": IDS, "queries": queries}, sites="all")
    assert {*found.sites} == {"residual"}


class Noisy(Model):
    """It draws in every pass, and may leave it at that."""

    def __init__(self, uses: bool) -> None:
        super().__init__()
        self.uses = uses

    def forward(self, input_ids: Tensor, shift: Tensor | None = None, queries: Tensor | None = None) -> Tensor:
        order = torch.randperm(input_ids.shape[1])
        return super().forward(input_ids[:, order[:4]] if self.uses else input_ids)


@pytest.mark.parametrize("uses", [True, False])
def test_a_model_whose_second_pass_differs_is_told(uses: bool) -> None:
    found = scan(made(Noisy(uses)), {"input_ids": IDS})
    assert any("draws random numbers" in note for note in found.notes) is uses


class Telling(nn.Module):
    """A block that also hands on what its router thought, of which the first is told nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn_qkv, self.router = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, thought: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = self.attn_qkv(self.norm(x)).chunk(3, dim=-1)
        thought = self.router(x) + (0 if thought is None else thought)
        return x + scaled_dot_product_attention(q, k, v), thought


class Routed(nn.Module):
    """Blocks that tell one another something beside the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(40, DIM), nn.ModuleList(Telling() for _ in range(3))

    def forward(self, input_ids: Tensor) -> Tensor:
        x, thought = self.embed(input_ids), None
        for layer in self.layers:
            x, thought = layer(x, thought)
        return x  # type: ignore[no-any-return]


def test_what_blocks_tell_one_another_is_no_stream() -> None:
    found = scan(made(Routed()), {"input_ids": IDS})
    assert found.stacks is None or len(found.stacks) < 2
    assert len(found.to_frame()["layer"].unique()) == 4


class Convolved(nn.Module):
    """A block of another class that passes the tokens on, with no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)).relu()


class Attending(Block):
    """Called with the tokens alone."""

    def forward(self, x: Tensor, queries: int = 0, shift: Tensor | None = None) -> Tensor:
        return super().forward(x, 0, torch.zeros(DIM))


class Mixed(nn.Module):
    """Few blocks of many attend, and their classes do not say that all are layers."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (Convolved, Attending, Convolved, Attending, Convolved)
        self.embed, self.layers = nn.Embedding(40, DIM), nn.ModuleList(kind() for kind in kinds)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x  # type: ignore[no-any-return]


def test_what_stands_between_blocks_that_attend_is_a_layer_too() -> None:
    found = scan(made(Mixed()), {"input_ids": IDS})
    assert sorted(found.to_frame()["layer"].unique()) == [0, 1, 2, 3, 4, 5]
    assert not any("something is done" in note for note in found.notes)


class HalfLayers(nn.Module):
    """A list by turns of attention and of an MLP, each added to the stream outside, as x-transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (Attending, Convolved, Attending, Convolved)
        self.embed, self.layers = nn.Embedding(40, DIM), nn.ModuleList(nn.ModuleList([kind()]) for kind in kinds)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for [part] in self.layers:
            x = x + part(x)
        return x  # type: ignore[no-any-return]


def test_half_layers_are_layers_and_told() -> None:
    found = scan(made(HalfLayers()), {"input_ids": IDS})
    assert sorted(found.to_frame()["layer"].unique()) == [0, 1, 2, 3, 4]
    assert any("2 of the 4 blocks at 'layers.*' are half-layers" in note for note in found.notes)


def test_blocks_that_are_sharded_and_unknown_are_told_not_to_be_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.scanning.first_look.is_sharded", lambda model: True)
    model = made(Mixed())
    [stack] = first_look(model, find_stacks(model), {"input_ids": IDS})
    assert any("sharded by FSDP2 and were not tried out" in note for note in stack.told)
