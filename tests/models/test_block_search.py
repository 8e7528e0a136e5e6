"""Blocks of every kind: sites and weights are found and are those of float64 arithmetic by hand, or are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.hand_blocks import (
    DIM,
    HEAD_DIM,
    HandBlock,
    Kind,
    by_hand,
    hand_block,
    head_maps,
    head_weights,
    reads,
    stream,
)
from unsmooth.errors import UnsmoothError
from unsmooth.models.anatomy import Anatomy
from unsmooth.models.block_record import BlockCall, calls_of, hides_later, record
from unsmooth.models.block_search import BlockParts, NotProved, find_parts, prove
from unsmooth.models.host import Host
from unsmooth.models.value_search import ValueMaps, find_value_maps
from unsmooth.models.wiring import wired_values

FOUND = {
    "plain": Kind(),
    "causal": Kind(causal=True),
    "eager": Kind(fused=False, causal=True),
    "grouped heads": Kind(key_value=2),
    "one value head": Kind(key_value=1),
    "fused": Kind(layout="qkv"),
    "fused, grouped heads": Kind(layout="qkv", key_value=2),
    "fused group by group": Kind(layout="grouped", key_value=2),
    "fused head by head": Kind(layout="grouped"),
    "values first": Kind(layout="vkq"),
    "keys with values": Kind(layout="kv", key_value=2),
    "keys with values, head by head": Kind(layout="kv by head"),
    "parallel": Kind("parallel"),
    "post-norm": Kind("post"),
    "sandwich": Kind("sandwich"),
    "norms on the branches alone": Kind("output"),
    "layer scale": Kind(gain="module"),
    "layer scale without a module": Kind(gain="weight"),
    "branches times a number": Kind(scale=0.22),
    "branches times a weight of one number": Kind(gain="number"),
    "branches times the tanh of one": Kind(gain="tanh"),
    "sinks": Kind(sink=True, fused=False),
    "norms of queries and keys": Kind(query_norm=True),
    "latent": Kind(latent=True),
    "latent and gated": Kind(latent=True, gated="head", causal=True),
    "norm of values": Kind(value_norm=True, key_value=2),
    "norm on the heads": Kind(heads_norm=True),
    "norm on the heads, post-norm": Kind("post", heads_norm=True, key_value=2),
    "gated": Kind(gated="each", layout="qkv"),
    "gated head by head": Kind(gated="head", key_value=2),
    "values times a number": Kind(factor=0.7),
    "gated, values normalised and times a number": Kind(gated="each", value_norm=True, factor=0.7),
}
BETWEEN_WEIGHTS = ["latent and gated", "norm of values", "norm on the heads", "gated", "values times a number"]
STYLES = {"sandwich": "pre", "output": "pre"}


def parts_of(block: nn.Module, x: Tensor | None = None) -> BlockParts:
    return find_parts(BlockCall(block, (stream() if x is None else x,), {}))


def sites_of(block: nn.Module, parts: BlockParts, x: Tensor) -> dict[str, Tensor]:
    """What hooks at the taps see."""
    model, seen = nn.Sequential(block), dict[str, Tensor]()
    host = Host("found", (), "", taps=lambda block: parts.taps)
    anatomy = Anatomy(model, host, {"0": block})
    with torch.no_grad(), anatomy.watch(lambda layer, site, x: seen.__setitem__(site, x.clone()), anatomy.sites):
        model(x)
    return seen


def error(found: Tensor, wanted: Tensor) -> float:
    assert wanted.abs().max() > 1e-3, "a tensor near zero would agree with anything"
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("kind", FOUND.values(), ids=FOUND)
def test_sites_are_those_of_arithmetic_by_hand(kind: Kind) -> None:
    block, x = hand_block(kind), stream(seed=7)
    parts, wanted = parts_of(block), by_hand(block, x)
    assert not parts.refused
    found = sites_of(block, parts, x)
    assert set(found) == set(wanted)
    for site, tensor in wanted.items():
        assert error(found[site], tensor) < 1e-5, site


@pytest.mark.parametrize("shape", [(3, 700, DIM), (300, 5, DIM)], ids=["long", "many"])
def test_many_tokens_tell_the_same(shape: tuple[int, ...]) -> None:
    block = hand_block(Kind(key_value=2))
    found = parts_of(block, torch.randn(shape, generator=torch.Generator().manual_seed(3)))
    assert found.wiring == parts_of(block).wiring
    assert not found.refused


@pytest.mark.parametrize("kind", FOUND.values(), ids=FOUND)
def test_weights_are_those_of_each_head(kind: Kind) -> None:
    block = hand_block(kind)
    wiring = parts_of(block).wiring
    assert wiring is not None
    assert wiring.style == STYLES.get(kind.style, kind.style)
    heads = wiring.weights.heads
    assert (heads.query, heads.key_value, heads.dim) == (kind.heads, kind.key_value, HEAD_DIM)
    assert wiring.causal is kind.causal
    assert wiring.mlp == ("mlp.0", "mlp.2")
    values = wired_values(block, wiring)
    assert values.b_v is not None
    assert values.b_o is not None
    gain = (1.0 if kind.gain is None else block.ls1.gamma if kind.gain == "module" else block.gamma1) * kind.scale
    gain = gain.tanh() if kind.gain == "tanh" else gain
    for h in range(kind.heads):
        w_v, w_o = head_maps(block, h)
        torch.testing.assert_close(values.w_v[h].double(), w_v, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(values.w_o[h].double(), w_o, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(values.head(h).double(), w_v @ w_o * gain, rtol=1e-5, atol=1e-5)
        if not (kind.latent or kind.value_norm or kind.factor != 1.0):
            assert torch.equal(values.b_v[h].double(), head_weights(block, f"v{reads(kind, h)}")[1])
    assert (values.gain is None) == (kind.gain is None and kind.scale == 1.0)
    if values.gain is not None:
        torch.testing.assert_close(values.gain, torch.ones(DIM) * gain)


@pytest.mark.parametrize(("name", "norms", "output_norms"), [
    ("plain", ("norm1", "norm2"), None),
    ("parallel", ("norm1", "norm1"), None),
    ("post-norm", ("norm1", "norm2"), None),
    ("sandwich", ("norm1", "norm2"), ("out_norm1", "out_norm2")),
    ("norms on the branches alone", ("", ""), ("norm1", "norm2")),
])  # fmt: skip
def test_norms_are_found_in_their_place(name: str, norms: tuple[str, str], output_norms: Any) -> None:
    wiring = parts_of(hand_block(FOUND[name])).wiring
    assert wiring is not None
    assert (wiring.norms, wiring.output_norms) == (norms, output_norms)


@pytest.mark.parametrize(
    "name", ["plain", "post-norm", "parallel", "sandwich", "layer scale", "layer scale without a module",
             "branches times a weight of one number", "branches times the tanh of one", *BETWEEN_WEIGHTS]
)  # fmt: skip
def test_a_fresh_block_whose_gates_are_zero_is_known(name: str) -> None:
    block = hand_block(FOUND[name], fresh=True)
    with torch.no_grad():
        for parameter_name, parameter in block.named_parameters():
            if "gamma" in parameter_name:
                parameter.zero_()
    before = {key: value.clone() for key, value in block.state_dict().items()}
    wanted, random = parts_of(hand_block(FOUND[name])), torch.get_rng_state()
    assert parts_of(block) == wanted
    assert all(torch.equal(before[key], value) for key, value in block.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())


@pytest.mark.parametrize("name", ["fused group by group", *BETWEEN_WEIGHTS])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_block_in_another_precision_is_known(name: str, dtype: torch.dtype) -> None:
    block = hand_block(FOUND[name])
    found, wanted = parts_of(block.to(dtype), stream().to(dtype)), parts_of(hand_block(FOUND[name]))
    assert not found.refused
    assert str(found) == str(wanted)


def test_a_block_in_training_is_known_without_its_dropout() -> None:
    block = hand_block(Kind())
    block.mlp.append(nn.Dropout(0.5))
    block.train()
    parts = parts_of(block)
    assert not parts.refused
    assert all(module.training for module in block.modules())


@pytest.mark.parametrize(("kind", "what", "why"), [
    (Kind(key_value=2, deal="turn"), "weights", "query heads that read values in the order"),
    (Kind(scale=1e-6), "attention", "adds less than a thousandth"),
])  # fmt: skip
def test_what_is_refused_says_why(kind: Kind, what: str, why: str) -> None:
    block, x = hand_block(kind), stream(seed=7)
    parts = parts_of(block)
    assert why in parts.refused[what]
    assert (parts.wiring is None) == (what != "weights")
    if parts.wiring is not None:  # the branches are there all the same, and the sites
        assert (parts.wiring.last, parts.wiring.norms) == ("attn.out", ("norm1", "norm2"))
        with pytest.raises(UnsmoothError, match=why):
            _ = parts.wiring.weights
        wanted = by_hand(block, x)
        for site, tensor in sites_of(block, parts, x).items():
            assert error(tensor, wanted[site]) < 1e-5, site


def test_a_number_that_may_be_learned_in_a_way_that_is_not_seen_is_refused() -> None:
    class Squashed(HandBlock):
        def joins(self, branch: Tensor, number: int) -> Tensor:
            return branch * getattr(self, f"gamma{number}").sigmoid()

    torch.manual_seed(0)
    parts = parts_of(Squashed(Kind(gain="number")).eval())
    assert parts.wiring is None
    assert "which may come of weights of one number" in parts.refused["weights"]


def test_values_that_are_no_run_of_columns_are_refused() -> None:
    block = hand_block(Kind())
    places = torch.arange(4 * HEAD_DIM).reshape(4, HEAD_DIM).T.flatten()  # feature by feature, not head by head

    class Turned(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    to_v = Turned(DIM, 4 * HEAD_DIM)
    to_v.load_state_dict(block.attn.to_v.state_dict())
    block.attn.to_v = to_v
    plain = type(block.attn).forward

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            block.attn.to_v.register_forward_hook(lambda module, args, out: out[..., places])
            try:
                return plain(block.attn, x)
            finally:
                block.attn.to_v._forward_hooks.clear()

    block.attn.forward = forward  # type: ignore[method-assign]
    wiring = parts_of(block).wiring
    assert wiring is not None
    assert isinstance(wiring.values, str)


def proof_of(kind: Kind) -> tuple[HandBlock, Any, ValueMaps, Tensor]:
    block = hand_block(kind)
    seen = record(BlockCall(block, (stream(),), {}))
    maps = find_value_maps(seen, seen.maps[0], 10**6)
    assert isinstance(maps, ValueMaps)
    wiring = parts_of(block).wiring
    assert wiring is not None
    return block, wired_values(block, wiring), maps, by_hand(block, stream())["attention"]


def queries_for_values(block: HandBlock, values: Any) -> Any:
    w_v = torch.stack([head_weights(block, f"q{h}")[0] for h in range(block.kind.heads)]).float()
    return dataclasses.replace(values, w_v=w_v)


WRONG: dict[str, Callable[[HandBlock, Any], Any]] = {
    "queries for values": queries_for_values,
    "values shifted by a head": lambda block, values: dataclasses.replace(values, w_v=values.w_v.roll(1, 0)),
    "output shifted by a head": lambda block, values: dataclasses.replace(values, w_o=values.w_o.roll(1, 0)),
    "groups in turn": lambda block, values: dataclasses.replace(values, w_v=values.w_v[[0, 2, 0, 2]]),
    "no bias": lambda block, values: dataclasses.replace(values, b_v=None),
    "not scaled": lambda block, values: dataclasses.replace(values, gain=None),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_the_proof_fails_for_other_weights(wrong: Callable[[HandBlock, Any], Any]) -> None:
    block, values, maps, branch = proof_of(Kind(key_value=2, layout="qkv", gain="module"))
    prove(values, maps, branch, False)
    with pytest.raises(NotProved, match="differs from the branch"):
        prove(wrong(block, values), maps, branch, False)


def keys_for_values(block: HandBlock, values: Any) -> Any:
    """The keys where the block has its values, in what the norm inside divides too."""
    w_k = torch.stack([head_weights(block, f"k{reads(block.kind, h)}")[0] for h in range(block.kind.heads)]).float()
    return dataclasses.replace(values, w_v=w_k, latent=dataclasses.replace(values.latent, down=w_k))


def inside(**changes: Callable[[Any], Any]) -> Callable[[HandBlock, Any], Any]:
    """A change of one part of what stands between the weights."""

    def change(block: HandBlock, values: Any) -> Any:
        new = {}
        for name, how in changes.items():
            part, _, field = name.partition("__")
            old = getattr(values, part)
            new[part] = dataclasses.replace(old, **{field: how(getattr(old, field))}) if field else how(old)
        return dataclasses.replace(values, **new)

    return change


BETWEEN: dict[str, tuple[Kind, Callable[[HandBlock, Any], Any]]] = {
    "latent shifted by a head": (Kind(latent=True), inside(latent__up=lambda up: up.roll(1, 0))),
    "latent without its norm": (Kind(latent=True), inside(latent=lambda old: None)),
    "other columns of the latent": (Kind(latent=True), inside(latent__down=lambda down: down.roll(1, -1))),
    "keys for normalised values": (Kind(value_norm=True), keys_for_values),
    "values without their norm": (Kind(value_norm=True), inside(latent=lambda old: None)),
    "no gate": (Kind(gated="each"), inside(gate=lambda old: None)),
    "gates shifted by a head": (Kind(gated="head"), inside(gate__weight=lambda weight: weight.roll(1, 0))),
    "another function": (Kind(gated="head"), inside(gate__function=lambda name: "sigmoid")),
    "heads without their norm": (Kind(heads_norm=True), inside(heads_norm=lambda old: None)),
    "not multiplied": (Kind(factor=0.7), inside(w_v=lambda w_v: w_v / 0.7)),
}


@pytest.mark.parametrize(("kind", "wrong"), BETWEEN.values(), ids=BETWEEN)
def test_the_proof_fails_for_another_norm_or_gate(kind: Kind, wrong: Callable[[HandBlock, Any], Any]) -> None:
    block, values, maps, branch = proof_of(kind)
    prove(values, maps, branch, False)
    with pytest.raises(NotProved, match="differs from the branch"):
        prove(wrong(block, values), maps, branch, False)


def test_a_gate_that_no_linear_map_makes_is_refused() -> None:
    block = hand_block(Kind(gated="each"))
    block.attn.gate.register_forward_hook(lambda module, args, made: made.cumsum(1))
    wiring = parts_of(block).wiring
    assert wiring is not None
    assert wiring.values == "a gate between the heads and 'attn.out' that is no function of one linear map"


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tokens_first", [True, False])
def test_what_a_block_hides_shows_where_it_runs(causal: bool, tokens_first: bool) -> None:
    block = hand_block(Kind(causal=causal))
    if tokens_first:
        block.register_forward_pre_hook(lambda module, args: (args[0].transpose(0, 1),))
        block.register_forward_hook(lambda module, args, made: made.transpose(0, 1))
    x = stream().transpose(0, 1) if tokens_first else stream()
    assert hides_later(BlockCall(block, (x,), {}), axis=0 if tokens_first else 1) is causal


def test_the_proof_fails_where_heads_cannot_be_told_apart() -> None:
    _, values, maps, branch = proof_of(Kind())
    same = dataclasses.replace(values, w_v=values.w_v[:1].expand(4, -1, -1), b_v=values.b_v[:1].expand(4, -1))
    same = dataclasses.replace(same, w_o=values.w_o[:1].expand(4, -1, -1))
    branch = same.attention_output(maps.maps.float(), maps.reads.float())
    with pytest.raises(NotProved, match="cannot tell them apart"):
        prove(same, maps, branch, False)


def test_a_stream_of_zeros_is_passed_over_for_one_that_shows_sums() -> None:
    blocks = nn.ModuleList(hand_block(Kind("post")) for _ in range(2))
    model, queries = nn.Sequential(*blocks), torch.zeros_like(stream())
    calls, _ = calls_of(blocks, lambda: model(queries))
    (call,) = calls.values()
    assert call.block is blocks[1]
    assert find_parts(call) == parts_of(blocks[0])
    calls, _ = calls_of([blocks[0]], lambda: model(queries))
    assert [one.block for one in calls.values()] == [blocks[0]]  # there is no other


def test_a_block_that_deals_out_its_tokens_is_refused() -> None:
    class Dealt(HandBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.norm1(x))
            chosen = torch.zeros(x.shape[:2], dtype=torch.bool)
            return x + self.mlp(self.norm2(x)) + 0.0 * self.other(x[chosen]).sum()

    torch.manual_seed(0)
    block = Dealt(Kind()).eval()
    block.other = nn.Linear(DIM, DIM)
    assert "deals its tokens out" in parts_of(block).refused["attention"]


def test_a_block_that_hands_on_another_shape_is_refused() -> None:
    class Pools(HandBlock):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, ::2]

    assert "hands on (2, 3, 12) where (2, 5, 12) enters" in parts_of(Pools(Kind())).refused["attention"]


def test_a_block_that_fails_by_itself_is_refused() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no more than once")

    parts = parts_of(Fails())
    assert not parts.taps
    assert "no more than once" in parts.refused["block"]


def test_an_mlp_of_convolutions_that_takes_more_than_the_stream_hides_no_sites() -> None:
    class ConvolvedMlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv1d(DIM, 20, 1), nn.Conv1d(20, DIM, 1)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            out: Tensor = self.last(self.first(x.mT).relu() * mask).mT
            return out

    class Convolved(HandBlock):
        def forward(self, x: Tensor) -> Tensor:
            middle = x + self.attn(self.norm1(x))
            out: Tensor = middle + self.mlp(self.norm2(middle), torch.ones(1))
            return out

    torch.manual_seed(0)
    block = Convolved(Kind(key_value=2, deal="turn")).eval()
    block.mlp = ConvolvedMlp()  # type: ignore[assignment]
    parts = parts_of(block)
    assert set(parts.taps) == {"normed", "attention", "mid", "mlp"}
    assert parts.wiring is not None
    assert not parts.wiring.mlp


def test_what_a_block_changes_in_place_is_shown_as_it_was() -> None:
    class InPlace(HandBlock):
        def forward(self, x: Tensor) -> Tensor:
            read = self.norm1(x)
            attention, mlp = self.attn(read), self.mlp(read)
            mlp += attention
            return x + mlp

    torch.manual_seed(0)
    block, x = InPlace(Kind("parallel")).eval(), stream(seed=7)
    found = sites_of(block, parts_of(block), x)
    for site, tensor in by_hand(block, x).items():
        assert error(found[site], tensor) < 1e-5, site
