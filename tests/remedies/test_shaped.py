from __future__ import annotations

import operator
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.remedies.by_hand import Edits, by_hand, streams
from tests.remedies.by_hand import exact as plain_in_float64
from tests.remedies.by_hand import near as near_by_hand
from tests.remedies.hosts import BY_NAME
from tests.remedies.written_out import (
    CASES,
    HEADS,
    blocks_of,
    exact,
    exact_call,
    may_see,
    near,
    record,
    set_all,
    uniform,
)
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied, apply
from unsmooth.remedies.call import Call


@pytest.mark.parametrize(("name", "padded"), CASES)
def test_is_the_shaped_map_times_the_values(name: str, padded: str | None) -> None:
    model = apply(exact(name), "shaped")
    chosen = set_all(name, model, "shaped", alpha=0.7, beta=0.9, gamma=0.5)
    call, real = exact_call(name, padded)
    mean = uniform(may_see(name, real))[:, None]
    eye = torch.eye(real.shape[1], dtype=torch.double)
    for block, numbers in zip(record(name, model, call), chosen, strict=True):
        alpha, beta, gamma = (numbers[key].reshape(1, HEADS, 1, 1) for key in ("alpha", "beta", "gamma"))
        shaped = alpha * eye + beta * block.map - gamma * mean
        near(block.heads, (shaped @ block.values_by_head()).transpose(1, 2), real)


def test_one_set_of_numbers_per_layer() -> None:
    model = apply(exact("llama"), "shaped", learn="layer")
    chosen = set_all("llama", model, "shaped", alpha=0.7, beta=0.9, gamma=0.5)
    call, real = exact_call("llama")
    mean, eye = uniform(may_see("llama", real))[:, None], torch.eye(real.shape[1], dtype=torch.double)
    for block, numbers in zip(record("llama", model, call), chosen, strict=True):
        assert numbers["alpha"].shape == (1,)
        shaped = numbers["alpha"] * eye + numbers["beta"] * block.map - numbers["gamma"] * mean
        near(block.heads, (shaped @ block.values_by_head()).transpose(1, 2))


def test_spectrum() -> None:
    # Values that are one-hot tokens make of what a head gives the map itself.
    tokens, alpha, beta, gamma = 6, 0.3, 1.4, 0.8
    layer = nn.TransformerEncoderLayer(tokens, 1, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double()
    edit = apply(model, "shaped", alpha=alpha, beta=beta, gamma=gamma, learn="no").layers[0].unsmooth.shaped
    torch.manual_seed(0)
    attention = torch.randn(tokens, tokens, dtype=torch.double).softmax(-1)
    values = torch.eye(tokens, dtype=torch.double)[None, :, None]
    got = edit.on_heads(attention[None, :, None], Call(values[:, :, 0], False, None, None, None, {}, values))[0, :, 0]
    _, *rest = sorted(torch.linalg.eigvals(attention).tolist(), key=abs, reverse=True)
    found = torch.linalg.eigvals(got).tolist()
    for eigenvalue in [alpha + beta - gamma, *(alpha + beta * mu for mu in rest)]:
        assert min(abs(eigenvalue - other) for other in found) < 1e-10


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_without_queries_only_the_identity_is_left(name: str) -> None:
    # The start of He & Hofmann: zero logits, and α = β = γ = 1.
    model = apply(exact(name), "shaped")
    for block in blocks_of(name, model):
        if name == "bert":
            nn.init.zeros_(block.attention.self.query.weight)
            nn.init.zeros_(block.attention.self.query.bias)
        else:
            block.attn.c_attn.weight.data[:, :32] = 0.0
            block.attn.c_attn.bias.data[:32] = 0.0
    call, _ = exact_call(name)
    for block in record(name, model, call):
        # The libraries' own softmax is in float32.
        near(block.heads, block.values_by_head().transpose(1, 2), tolerance=1e-6)


@pytest.mark.parametrize("name", ["bert", "vit", "llama", "torch_pre"])
@pytest.mark.parametrize("remedy", ["shaped", "value_skipinit"])
def test_the_way_past_attention_can_be_dropped(name: str, remedy: str) -> None:
    neutral = {"alpha": 0.0, "beta": 1.0, "learn": "no"} | ({"gamma": 0.0} if remedy == "shaped" else {})
    model = apply(plain_in_float64(name), remedy, skip="drop", **neutral)
    with torch.no_grad():
        wanted = by_hand(name, plain_in_float64(name), Edits(first=lambda stream, branch: branch))
        near_by_hand(name, streams(name, model)[1], wanted)


# What drops a branch in training after the place at which edits meet it.
DROPS_LATER = {
    "vit": ("ViTLayer", "dropout.p"),
    "dinov2": ("Dinov2Layer", "drop_path.drop_prob"),
    "whisper": ("WhisperEncoderLayer", "dropout"),
    "falcon_in_turn": ("FalconDecoderLayer", "config.attention_dropout"),
    "bloom": ("BloomBlock", "self_attention.hidden_dropout"),
}


@pytest.mark.parametrize("name", DROPS_LATER)
@pytest.mark.parametrize("remedy", ["shaped", "value_skipinit"])
def test_the_way_past_would_be_back_where_the_branch_is_dropped_later(name: str, remedy: str) -> None:
    model = BY_NAME[name].model()
    kind, path = DROPS_LATER[name]
    owner, _, last = f"self.{path}".rpartition(".")
    for block in model.modules():
        if type(block).__name__ == kind:
            setattr(operator.attrgetter(owner)(SimpleNamespace(self=block)), last, 0.25)
    stack = "encoder" if name == "whisper" else None
    with pytest.raises(UnsmoothError, match=re.escape("in training it drops 0.25 of what attention gives later")):
        apply(model, remedy, skip="drop", stack=stack)
    assert applied(apply(model, remedy)) != []
    apply(BY_NAME[name].model(), remedy, skip="drop")


def test_what_cannot_go_without_the_way_past_is_refused() -> None:
    with pytest.raises(UnsmoothError, match="adds attention and MLP at once"):
        apply(plain_in_float64("neox_parallel"), "shaped", skip="drop")
    model = apply(plain_in_float64("bert"), "value_skipinit", skip="drop")
    with pytest.raises(UnsmoothError, match="value_skipinit has dropped the way past"):
        apply(model, "shaped", skip="drop")
    with pytest.raises(UnsmoothError, match="value_skipinit has dropped the way past its attention, which ω weighs"):
        apply(model, "admin", start="ones")
    assert [one.name for one in applied(model)] == ["value_skipinit"]
    with pytest.raises(UnsmoothError, match="admin weighs the way past its attention"):
        apply(apply(plain_in_float64("bert"), "admin", start="ones"), "shaped", skip="drop")
