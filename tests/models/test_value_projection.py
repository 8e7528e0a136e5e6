"""Weights are read right when they and the captured maps give the attention branch that the model computed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.models import checkpoints
from tests.models.entries import ENTRIES
from tests.models.entry import Entry, Padding
from tests.models.rebuilding import implementations, largest_error, model_with
from unsmooth.models import ValueProjection, find_anatomy, load, value_projection
from unsmooth.models.qkv_layouts import BY_GROUP, CONCATENATED, SEPARATE, Heads, Layout
from unsmooth.models.wire import found_wiring
from unsmooth.models.wiring import Wiring, wired_values

BY_NAME = {entry.name: entry for entry in ENTRIES}
CASES = [(e, i, p) for e in ENTRIES for i in implementations(e) for p in e.paddings]


@pytest.mark.parametrize(("entry", "implementation", "padding"), CASES, ids=[f"{e.name}-{i}-{p}" for e, i, p in CASES])
def test_attention_is_rebuilt_from_weights_and_maps(entry: Entry, implementation: str, padding: Padding) -> None:
    assert largest_error(entry, model_with(entry, implementation), padding) < 1e-5


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("gpt2-tiny", BY_GROUP),
        ("modernbert-local", BY_GROUP),
        ("torch_encoder-post-batch-first", BY_GROUP),
        ("timm_vit-stand-in", BY_GROUP),
        ("phi3-grouped", BY_GROUP),
        ("gpt_neox-parallel", CONCATENATED),
        ("bloom-tiny", CONCATENATED),
        ("falcon-alibi", CONCATENATED),
        ("falcon-grouped", CONCATENATED),
    ],
)
def test_other_slicing_of_the_same_size_is_caught(name: str, wrong: Layout) -> None:
    entry = BY_NAME[name]

    def read_otherwise(model: nn.Module, block: int) -> ValueProjection:
        found = list(find_anatomy(model).blocks.values())[block]
        return wired_values(found, with_layout(found_wiring(found), wrong))

    assert largest_error(entry, entry.model(), entry.paddings[0], read_otherwise) > 1e-2


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("bert-tiny", "attention.self.value", "attention.self.key"),
        ("llama-grouped", "self_attn.v_proj", "self_attn.k_proj"),
        ("vit-tiny", "attention.v_proj", "attention.k_proj"),
    ],
)
def test_keys_taken_for_values_are_caught(name: str, value: str, key: str) -> None:
    entry = BY_NAME[name]

    def read_keys(model: nn.Module, block: int) -> ValueProjection:
        found = list(find_anatomy(model).blocks.values())[block]
        values = found.get_submodule(value)
        found.set_submodule(value, found.get_submodule(key))
        try:
            return value_projection(model, block)
        finally:
            found.set_submodule(value, values)

    assert largest_error(entry, entry.model(), entry.paddings[0], read_keys) > 1e-2


@pytest.mark.parametrize("name", ["llama-grouped", "qwen-qwen2-grouped", "phi3-grouped", "falcon-grouped"])
def test_heads_dealt_out_in_turn_are_caught(name: str) -> None:
    entry = BY_NAME[name]

    def tiled(model: nn.Module, block: int) -> ValueProjection:
        right = value_projection(model, block)
        assert right.kv_of_head.tolist() == [0, 0, 1, 1]
        return dataclasses.replace(right, w_v=right.w_v[[0, 2, 0, 2]])

    assert largest_error(entry, entry.model(), entry.paddings[0], tiled) > 1e-2


@pytest.mark.parametrize(
    ("layout", "heads", "order"),
    [
        (SEPARATE, Heads(4, 2, 1), "v0 v1"),
        (CONCATENATED, Heads(2, 2, 1), "q0 q1 k0 k1 v0 v1"),
        (CONCATENATED, Heads(4, 2, 1), "q0 q1 q2 q3 k0 k1 v0 v1"),
        (BY_GROUP, Heads(2, 2, 1), "q0 k0 v0 q1 k1 v1"),
        (BY_GROUP, Heads(4, 2, 1), "q0 q1 k0 v0 q2 q3 k1 v1"),
        (BY_GROUP, Heads(4, 1, 1), "q0 q1 q2 q3 k0 v0"),
    ],
)
def test_layouts_by_name(layout: Layout, heads: Heads, order: str) -> None:
    names = order.split()
    wide = Heads(heads.query, heads.key_value, 2)
    assert (layout.size(heads), layout.size(wide)) == (len(names), 2 * len(names))
    places = torch.arange(2 * len(names))
    values = layout.values(places, wide)
    assert [[names[i // 2] for i in row] for row in values.tolist()] == [[f"v{h}"] * 2 for h in range(heads.key_value)]
    assert (values.flatten() % 2).tolist() == [0, 1] * heads.key_value


def with_layout(wiring: Wiring, layout: Layout) -> Wiring:
    return dataclasses.replace(wiring, values=dataclasses.replace(wiring.weights, layout=layout))


def numpy_of(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().double().numpy() for tensor in tensors]


def test_bert_by_hand() -> None:
    model = BY_NAME["bert-tiny"].model()
    attention = model.encoder.layer[1].attention
    values, out = attention.self.value, attention.output.dense
    w_v, b_v, w_o, b_o = numpy_of(values.weight, values.bias, out.weight, out.bias)
    found = value_projection(model, 1)
    assert (found.heads, found.dim, found.head_dim, found.place) == (2, 16, 8, "post")
    np.testing.assert_allclose(found.head(1).numpy(), w_v[8:].T @ w_o[:, 8:].T, atol=1e-5)
    np.testing.assert_allclose(found.summed().numpy(), w_v.T @ w_o.T, atol=1e-5)
    drift = found.drift()
    assert drift is not None
    # The norm stands after the addition, so its bias is no part of the push.
    np.testing.assert_allclose(drift.numpy(), b_v @ w_o.T + b_o, atol=1e-5)
    assert found.norm.weight is not None
    assert torch.equal(found.norm.weight, attention.output.LayerNorm.weight)
    assert found.norm.eps == attention.output.LayerNorm.eps


def test_gpt2_by_hand() -> None:
    model = BY_NAME["gpt2-tiny"].model()
    block = model.h[2]
    w, b, w_o, b_o, beta = numpy_of(
        block.attn.c_attn.weight,
        block.attn.c_attn.bias,
        block.attn.c_proj.weight,
        block.attn.c_proj.bias,
        block.ln_1.bias,
    )
    found = value_projection(model, 2)
    np.testing.assert_allclose(found.summed().numpy(), w[:, 32:] @ w_o, atol=1e-5)
    drift = found.drift()
    assert drift is not None
    np.testing.assert_allclose(drift.numpy(), (beta @ w[:, 32:] + b[32:]) @ w_o + b_o, atol=1e-5)


def test_gain_is_in_heads_sum_and_drift() -> None:
    model = BY_NAME["timm_vit-stand-in-scaled"].model()
    block = model.blocks[0]
    w, b, w_o, b_o, beta, gamma = numpy_of(
        block.attn.qkv.weight,
        block.attn.qkv.bias,
        block.attn.proj.weight,
        block.attn.proj.bias,
        block.norm1.bias,
        block.ls1.gamma,
    )
    found = value_projection(model, 0)
    np.testing.assert_allclose(found.summed().numpy(), w[32:].T @ w_o.T @ np.diag(gamma), atol=1e-5)
    np.testing.assert_allclose(sum(found.head(h) for h in range(4)), w[32:].T @ w_o.T @ np.diag(gamma), atol=1e-5)
    drift = found.drift()
    assert drift is not None
    np.testing.assert_allclose(drift.numpy(), ((beta @ w[32:].T + b[32:]) @ w_o.T + b_o) * gamma, atol=1e-5)


@pytest.mark.parametrize("name", ["llama-llama", "gemma-gemma2"])
def test_without_biases_there_is_no_drift(name: str) -> None:
    assert value_projection(BY_NAME[name].model(), 0).drift() is None


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_norm_is_the_models_own(entry: Entry) -> None:
    model = entry.model()
    paths = list(find_anatomy(model).blocks)
    x = 3 * torch.randn(4, 16, generator=torch.Generator().manual_seed(0)) + 1
    for block, path in enumerate(paths):
        numbers = [part for part in path.split(".") if part.isdigit()]
        module = model.get_submodule(entry.norms[0].format(*numbers))
        found = value_projection(model, block)
        assert found.place == ("post" if entry.style == "post" else "pre")
        torch.testing.assert_close(found.norm.apply(x), module(x).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_are_detached_and_at_least_float32(dtype: torch.dtype) -> None:
    model = BY_NAME["qwen-qwen2-grouped"].model().to(dtype)
    found = value_projection(model, 0)
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = [found.w_v, found.w_o, found.b_v, found.norm.weight]
    assert all(t is not None and t.dtype == wanted and not t.requires_grad for t in tensors)
    stored = model.layers[0].self_attn.v_proj.weight.detach()
    assert torch.equal(found.w_v[2].to(dtype), stored[8:].T)


def test_gguf_weights_are_in_the_same_shape(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path = tmp_path / "tiny.gguf"
    stored = checkpoints.save_gguf(path)
    found = value_projection(load(path), 1)
    assert (found.heads, found.head_dim, found.kv_of_head.tolist()) == (2, 8, [0, 0])
    np.testing.assert_array_equal(found.w_v[1].numpy(), stored["blk.1.attn_v.weight"].T)
    np.testing.assert_array_equal(found.w_o.flatten(0, 1).numpy(), stored["blk.1.attn_output.weight"].T)
