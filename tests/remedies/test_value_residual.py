from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.remedies.hosts import BY_NAME, LAYERS
from tests.remedies.written_out import CASES, HEADS, Block, blocks_of, exact, exact_call, near, record
from unsmooth.models import value_projection
from unsmooth.remedies import apply


def by_head(values: Tensor) -> Tensor:
    """(batch, heads, tokens, head dim), each query head with the values it reads."""
    return values.repeat_interleave(HEADS // values.shape[2], dim=2).transpose(1, 2)


def own_values(name: str, model: object, blocks: list[Block]) -> list[Tensor]:
    """Values before the remedy, from the streams by the weights: what `record` sees is mixed already."""
    found = []
    for block, made in zip(blocks_of(name, model), blocks, strict=True):
        if name == "bert":
            values = block.attention.self.value.weight @ made.stream.mT + block.attention.self.value.bias[:, None]
        elif name == "vit":
            normed = block.layernorm_before(made.stream)
            values = block.attention.v_proj.weight @ normed.mT + block.attention.v_proj.bias[:, None]
        elif name == "gpt2":
            values = (block.ln_1(made.stream) @ block.attn.c_attn.weight + block.attn.c_attn.bias)[..., -32:].mT
        else:
            values = block.self_attn.v_proj.weight @ block.input_layernorm(made.stream).mT
        found.append(values.mT.unflatten(-1, (-1, 8)))
    return found


@pytest.mark.parametrize(("name", "padded"), CASES)
@torch.no_grad()
def test_values_are_mixed_before_attention_mixes_tokens(name: str, padded: str | None) -> None:
    model = apply(exact(name), "value_residual", first=0.3, own=0.8)
    call, real = exact_call(name, padded)
    blocks = record(name, model, call)
    first, *rest = own_values(name, model, blocks)
    near(blocks[0].heads, (blocks[0].map @ by_head(first)).transpose(1, 2), real)
    for block, own in zip(blocks[1:], rest, strict=True):
        near(block.heads, (block.map @ by_head(0.3 * first + 0.8 * own)).transpose(1, 2), real)


@pytest.mark.parametrize("learn", ["layer", "head"])
def test_learned_numbers(learn: str) -> None:
    model = apply(exact("llama"), "value_residual", learn=learn)
    assert not list(blocks_of("llama", model)[0].unsmooth.parameters()), "block 0 has nothing to learn"
    edits = [block.unsmooth.value_residual for block in blocks_of("llama", model)[1:]]
    for edit in edits:
        assert edit.first.shape == ((2, 1) if learn == "head" else (1,))
        for parameter in edit.parameters():
            parameter.data = torch.rand(parameter.shape, dtype=parameter.dtype)
    call, _ = exact_call("llama")
    blocks = record("llama", model, call)
    with torch.no_grad():
        first, *rest = own_values("llama", model, blocks)
        for block, own, edit in zip(blocks[1:], rest, edits, strict=True):
            mixed = edit.first.expand(2, 1) * first + edit.own.expand(2, 1) * own
            near(block.heads, (block.map @ by_head(mixed)).transpose(1, 2))
    model(**call).logits.square().mean().backward()
    assert all(parameter.grad.ne(0).all() for edit in edits for parameter in edit.parameters())


def test_the_first_block_that_has_it_lends_and_stays_as_it_is() -> None:
    call, _ = exact_call("bert")
    model = apply(exact("bert"), "value_residual", layers=[1, 2], learn="layer")
    blocks = record("bert", model, call)
    with torch.no_grad():
        values = own_values("bert", model, blocks)
        near(blocks[1].heads, (blocks[1].map @ by_head(values[1])).transpose(1, 2))
        near(blocks[2].heads, (blocks[2].map @ by_head(0.5 * values[1] + 0.5 * values[2])).transpose(1, 2))
    model(**call)[0].square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters()), "DDP would wait for it"


def test_a_shared_block_lends_at_its_first_call() -> None:
    model = BY_NAME["albert"].model().double()
    apply(model, "value_residual")
    layer = model.encoder.albert_layer_groups[0].albert_layers[0]
    values, streams = [], []
    layer.attention.value.register_forward_hook(lambda module, args, out: values.append(out))
    layer.attention.value.register_forward_pre_hook(lambda module, args: streams.append(args[0]))
    for _ in range(2):  # and anew in each pass
        values.clear()
        streams.clear()
        with torch.no_grad():
            model(**BY_NAME["albert"].call(BY_NAME["albert"].inputs()))
            linear = layer.attention.value
            own = [stream @ linear.weight.mT + linear.bias for stream in streams]
        assert len(values) == LAYERS
        near(values[0], own[0])
        for found, one in zip(values[1:], own[1:], strict=True):
            near(found, 0.5 * own[0] + 0.5 * one)


def test_all_blocks_can_share_the_first_values() -> None:
    model = apply(exact("gpt2"), "value_residual", first=1.0, own=0.0)
    call, _ = exact_call("gpt2")
    blocks = record("gpt2", model, call)
    for block in blocks:
        near(block.values, blocks[0].values)


def test_those_who_explain_are_told_that_weights_do_not_show_it() -> None:
    model = apply(exact("bert"), "value_residual")
    assert value_projection(model, 1).unseen == ("value_residual",)
