from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unsmooth
from tests.remedies.by_hand import blocks_of, exact
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied

D, HEADS, E = 32, 4, 8
Weights = dict[str, np.ndarray]


def apart(weight: torch.Tensor, heads: int) -> np.ndarray:
    """(heads, D, E) from a weight as nn.Linear stores it."""
    return weight.detach().numpy().reshape(heads, E, D).transpose(0, 2, 1)


def by_name(query: Any, key: Any, value: Any, output: Any, groups: int = HEADS) -> Weights:
    out = output.weight.detach().numpy().T.reshape(HEADS, E, D)
    q, k, v = apart(query.weight, HEADS), apart(key.weight, groups), apart(value.weight, groups)
    return {"q": q, "k": k.repeat(HEADS // groups, 0), "v": v.repeat(HEADS // groups, 0), "o": out}


def weights(name: str, block: Any) -> Weights:
    """W_Q, W_K, W_V (heads, D, E) and W_O (heads, E, D) of every query head, sliced here anew."""
    if name == "bert":
        inner = block.attention.self
        return by_name(inner.query, inner.key, inner.value, block.attention.output.dense)
    if name == "llama":
        inner = block.self_attn
        return by_name(inner.q_proj, inner.k_proj, inner.v_proj, inner.o_proj, groups=2)
    if name == "mpnet":
        inner = block.attention.attn
        return by_name(inner.q, inner.k, inner.v, inner.o)
    if name == "gpt2":
        q, k, v = (apart(one, HEADS) for one in block.attn.c_attn.weight.T.chunk(3))
        return {"q": q, "k": k, "v": v, "o": block.attn.c_proj.weight.detach().numpy().reshape(HEADS, E, D)}
    if name == "torch_post":
        q, k, v = (apart(one, HEADS) for one in block.self_attn.in_proj_weight.chunk(3))
        return {"q": q, "k": k, "v": v, "o": block.self_attn.out_proj.weight.detach().numpy().T.reshape(HEADS, E, D)}
    fused = block.attention.query_key_value.weight.reshape(HEADS, 3, E, D)
    q, k, v = (apart(fused[:, index].reshape(-1, D), HEADS) for index in range(3))
    return {"q": q, "k": k, "v": v, "o": block.attention.dense.weight.detach().numpy().T.reshape(HEADS, E, D)}


def first(name: str, model: nn.Module) -> Any:
    if name == "mpnet":
        return model.encoder.layer[0]
    return blocks_of(model)[0]


def summed(found: Weights) -> np.ndarray:
    return np.einsum("hde,hef->df", found["v"], found["o"])


def products(found: Weights) -> np.ndarray:
    return np.einsum("hde,hfe->hdf", found["q"], found["k"])


def nearest(wanted: np.ndarray, rank: int) -> np.ndarray:
    left, values, right = np.linalg.svd(wanted)
    return (left[:, :rank] * values[:rank]) @ right[:rank]


@pytest.mark.parametrize("name", ["bert", "mpnet", "gpt2", "torch_post", "neox_parallel"])
def test_products_are_what_the_equations_say(name: str) -> None:
    model = exact(name)
    torch.manual_seed(3)
    unsmooth.apply(model, "mimetic", layers=0)
    torch.manual_seed(3)
    draw = [torch.randn(D, D, dtype=torch.float64).numpy() / D**0.5 for _ in range(1 + HEADS)]
    found = weights(name, first(name, model))
    np.testing.assert_allclose(summed(found), 0.4 * draw[0] - 0.4 * np.eye(D), atol=1e-12)
    for head, noise in enumerate(draw[1:]):
        np.testing.assert_allclose(products(found)[head], nearest(0.7 * noise + 0.7 * np.eye(D), E), atol=1e-12)


def test_heads_that_share_keys_and_values() -> None:
    model = exact("llama")
    torch.manual_seed(3)
    unsmooth.apply(model, "mimetic", layers=0, alpha=0.3, beta=0.5, query_alpha=0.2, query_beta=-0.6)
    torch.manual_seed(3)
    noise = torch.randn(D, D, dtype=torch.float64).numpy() / D**0.5
    pairs = [torch.randn(2 * D, D, dtype=torch.float64).numpy() / D**0.5 for _ in range(2)]
    found = weights("llama", first("llama", model))
    np.testing.assert_allclose(summed(found), nearest(0.3 * noise - 0.5 * np.eye(D), 2 * E), atol=1e-12)
    for group, both in enumerate(pairs):
        stacked = 0.2 * both - 0.6 * np.concatenate([np.eye(D), np.eye(D)])
        left, values, right = np.linalg.svd(stacked, full_matrices=False)
        wanted = ((left[:, :E] * values[:E]) @ right[:E]).reshape(2, D, D)
        np.testing.assert_allclose(products(found)[2 * group : 2 * group + 2], wanted, atol=1e-12)
    # Two heads that were equal would stay so for good.
    assert np.abs(found["q"][0] - found["q"][1]).max() > 0.01


@pytest.mark.parametrize(("name", "scale"), [("t5_encoder", 1.0), ("gemma2", 256**-0.5)])
def test_logits_start_the_same_where_they_are_scaled_otherwise(name: str, scale: float) -> None:
    model = exact(name)
    unsmooth.apply(model, "mimetic", layers=0, query_alpha=0.0, query_beta=0.5)
    if name == "gemma2":
        inner = model.model.layers[0].self_attn
        query, key = inner.q_proj, inner.k_proj
        assert model.config.query_pre_attn_scalar == 256
    else:
        inner = model.encoder.block[0].layer[0].SelfAttention
        query, key = inner.q, inner.k
    for head in range(HEADS):
        keys = head * len(key.weight) // len(query.weight)
        product = apart(query.weight, HEADS)[head] @ apart(key.weight, len(key.weight) // E)[keys].T
        logits = scale * product * E**0.5  # a projection by half, divided by √E, on any other host
        assert np.trace(logits) == pytest.approx(0.5 * E)
        np.testing.assert_allclose(logits @ logits, 0.5 * logits, atol=1e-12)


def test_without_noise_it_is_the_identity() -> None:
    model = unsmooth.apply(exact("bert"), "mimetic", alpha=0.0, beta=0.25, query_alpha=0.0, query_beta=0.5)
    for block in blocks_of(model):
        found = weights("bert", block)
        np.testing.assert_allclose(summed(found), -0.25 * np.eye(D), atol=1e-12)
        for product in products(found):  # half of a projection to as many dimensions as a head has
            np.testing.assert_allclose(product @ product, 0.5 * product, atol=1e-12)
            assert np.trace(product) == pytest.approx(0.5 * E)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "neox_parallel", "torch_post"])
@pytest.mark.parametrize(("options", "drawn"), [({"queries": "keep"}, "vo"), ({"values": "keep"}, "qk")])
def test_what_is_kept_is_as_it_was(name: str, options: dict[str, str], drawn: str) -> None:
    plain, model = exact(name), unsmooth.apply(exact(name), "mimetic", **options)
    before, after = weights(name, first(name, plain)), weights(name, first(name, model))
    assert {key for key in before if not np.array_equal(before[key], after[key])} == set(drawn)
    now = model.state_dict()
    moved = [key for key, was in plain.state_dict().items() if was.ndim == 1 and not torch.equal(was, now[key])]
    assert not moved, "biases and norms stay"
    Snapshot.of(exact(name)).check(unsmooth.undo(model), copied=True)


def test_trained_weights_give_way_when_it_is_undone_and_loaded_ones_do_not() -> None:
    model = unsmooth.apply(exact("vit"), "mimetic")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    saved = model.state_dict()
    again = unsmooth.apply(exact("vit"), "mimetic")
    again.load_state_dict(saved, strict=True)
    assert torch.equal(
        again.state_dict()["layers.0.attention.v_proj.weight"], saved["layers.0.attention.v_proj.weight"]
    )
    plain = exact("vit").state_dict()["layers.0.attention.v_proj.weight"]
    assert torch.equal(unsmooth.undo(again).state_dict()["layers.0.attention.v_proj.weight"], plain)
    other = exact("vit")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    model.load_state_dict(other.state_dict(), strict=True)
    Snapshot.of(other).check(unsmooth.undo(model), copied=True)


def test_it_folds_into_what_it_is() -> None:
    model = unsmooth.apply(BY_NAME["bert"].model(), "mimetic")
    wanted = {key: value.clone() for key, value in model.state_dict().items() if "unsmooth" not in key}
    unsmooth.fold(model)
    assert applied(model) == []
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in wanted.items())


@pytest.mark.parametrize(
    ("remedy", "options", "message"),
    [
        ("sharpen", {}, "another remedy computes some of its weights"),
        (None, {"alpha": -1}, "Expected alpha between 0.0 and 10.0"),
        (None, {"values": "drawn"}, "Try values='draw'"),
        (None, {"queries": 1}, "Expected queries as one of draw, keep"),
    ],
)
def test_what_it_cannot_do_leaves_the_model_alone(remedy: str | None, options: dict[str, Any], message: str) -> None:
    model = BY_NAME["bert"].model()
    if remedy is not None:
        unsmooth.apply(model, remedy)
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.apply(model, "mimetic", **options)
    before.check(model)


def test_value_heads_wider_than_the_stream_are_refused() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 16}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, num_key_value_heads=4, head_dim=8, vocab_size=11))
    with pytest.raises(UnsmoothError, match=r'wider than the stream .* values="keep" works'):
        unsmooth.apply(model, "mimetic")
    unsmooth.apply(model, "mimetic", values="keep")
