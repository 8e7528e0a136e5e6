"""Captured maps are the model's own: against its eager attentions, a numpy reference and torch's fused kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.models.entries import ENTRIES
from tests.models.entry import BATCH, TOKENS, Entry, Padding, texts
from tests.models.rebuilding import at_real, implementations, model_with
from tests.models.test_anatomy import hooks_left
from tests.models.test_stacks import assert_close
from unsmooth.models import NoAttentionMap, find_anatomy, row_sum_error, value_projection, watch_attention
from unsmooth.models.map_of_call import scaled_dot_product_map
from unsmooth.models.wire import wire

BY_NAME = {entry.name: entry for entry in ENTRIES}
CASES = [(e, i, p) for e in ENTRIES for i in implementations(e) for p in e.paddings]
each_case = pytest.mark.parametrize(
    ("entry", "implementation", "padding"), CASES, ids=[f"{e.name}-{i}-{p}" for e, i, p in CASES]
)
FROM_TRANSFORMERS = [(e, p) for e in ENTRIES if implementations(e) != ["own"] for p in e.paddings]
each_of_transformers = pytest.mark.parametrize(
    ("entry", "padding"), FROM_TRANSFORMERS, ids=[f"{e.name}-{p}" for e, p in FROM_TRANSFORMERS]
)
Maps = dict[int, Tensor]


def maps_of(model: nn.Module, batch: Mapping[str, Any]) -> Maps:
    seen: Maps = {}
    with torch.no_grad(), watch_attention(find_anatomy(model), seen.__setitem__):
        model(**batch)
    return seen


def rows(maps_BHNN: Tensor, padding: Padding) -> Tensor:
    """(real tokens, heads, keys)."""
    return at_real(maps_BHNN.transpose(1, 2), padding)


@each_of_transformers
def test_maps_are_those_that_the_eager_model_returns(entry: Entry, padding: Padding) -> None:
    model, batch = model_with(entry, "eager"), entry.batch(padding)
    seen = maps_of(model, batch)
    with torch.no_grad():
        wanted = model(**batch, output_attentions=True).attentions
    assert list(seen) == list(range(1, entry.calls + 1))
    assert len(seen) == len(wanted)
    for maps_BHNN, own_BHNN in zip(seen.values(), wanted, strict=True):
        torch.testing.assert_close(rows(maps_BHNN, padding), rows(own_BHNN, padding), atol=1e-6, rtol=0)


@each_of_transformers
def test_fused_and_written_out_attention_agree(entry: Entry, padding: Padding) -> None:
    if implementations(entry) == ["eager"]:
        pytest.skip("has no fused path")
    if entry.name == "falcon-alibi":
        pytest.skip("transformers adds ALiBi twice where attention is written out, so its two paths differ")
    models = [model_with(entry, implementation) for implementation in ("sdpa", "eager")]
    for model in models:
        for module in model.modules():
            if getattr(module, "attn_logit_softcapping", None):
                module.attn_logit_softcapping = None  # which the fused path leaves out
    fused, written_out = (maps_of(model, entry.batch(padding)) for model in models)
    for layer, maps_BHNN in fused.items():
        torch.testing.assert_close(rows(maps_BHNN, padding), rows(written_out[layer], padding), atol=1e-5, rtol=0)


@each_case
def test_rows_sum_to_one(entry: Entry, implementation: str, padding: Padding) -> None:
    real = entry.batch(padding).get("attention_mask")
    if real is None and "src_key_padding_mask" in entry.batch(padding):
        real = entry.batch(padding)["src_key_padding_mask"] == 0
    for maps_BHNN in maps_of(model_with(entry, implementation), entry.batch(padding)).values():
        assert maps_BHNN.dtype == torch.float32
        assert row_sum_error(maps_BHNN, None if real is None else real.bool()) < 1e-5


@each_case
def test_outputs_do_not_change_by_a_bit(entry: Entry, implementation: str, padding: Padding) -> None:
    model, batch = model_with(entry, implementation), entry.batch(padding)

    def output() -> Tensor:
        found = model(**batch)
        return found if isinstance(found, Tensor) else found.last_hidden_state

    # torch's encoder has a fast path that no hook can see into; any watching turns it off.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            plain = output()
            with find_anatomy(model).watch_attention(lambda layer, maps_BHNN: None):
                watched = output()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert torch.equal(watched, plain)


def reference(query: Any, key: Any, allowed: Any, bias: Any, scale: float) -> Any:
    """Softmax over allowed keys in float64, head by head; zeros where nothing is allowed."""
    batch, heads, tokens, _ = query.shape
    group = heads // key.shape[1]
    maps = np.zeros((batch, heads, tokens, key.shape[2]))
    for b, h, i in np.ndindex(batch, heads, tokens):
        keys = np.flatnonzero(allowed[b, h, i])
        if len(keys):
            scores = key[b, h // group, keys] @ query[b, h, i] * scale + bias[b, h, i, keys]
            weights = np.exp(scores - scores.max())
            maps[b, h, i, keys] = weights / weights.sum()
    return maps


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "additive", "half"])
def test_map_of_a_fused_call(kind: str, key_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, h, 5, 3, generator=generator) for h in (4, key_heads, key_heads))
    if kind == "half":
        query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
    allowed = torch.rand(2, 4, 5, 5, generator=generator) < 0.6
    allowed[0, 1, 2] = False
    bias = torch.randn(2, 4, 5, 5, generator=generator)
    options: dict[str, Any] = {"enable_gqa": key_heads < 4}
    if kind == "causal":
        allowed = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 4, 5, 5)
        options |= {"is_causal": True, "scale": 0.7}
    elif kind == "boolean":
        options["attn_mask"] = allowed
    elif kind == "additive":
        options["attn_mask"] = bias.masked_fill(~allowed, -torch.inf)
    if kind in ("none", "half"):
        allowed = torch.ones_like(allowed)
    added = bias if kind == "additive" else torch.zeros_like(bias)
    found = scaled_dot_product_map(query, key, value, **options)
    arrays = (query.double().numpy(), key.double().numpy(), allowed.numpy(), added.double().numpy())
    np.testing.assert_allclose(found.numpy(), reference(*arrays, options.get("scale", 3**-0.5)), atol=1e-6)
    if kind != "half":
        fused = nn.functional.scaled_dot_product_attention(query, key, value, **options)
        values = value.repeat_interleave(4 // key_heads, dim=1)
        torch.testing.assert_close(found @ values, fused, atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_encoder_by_hand(norm_first: bool) -> None:
    entry = BY_NAME[f"torch_encoder-{'pre' if norm_first else 'post'}-batch-first"]
    model, batch = entry.model(), entry.batch("right")
    layer = model.layers[0]
    x = batch["src"] if not norm_first else layer.norm1(batch["src"])
    projected = x.detach().double().numpy() @ layer.self_attn.in_proj_weight.detach().double().numpy().T
    projected += layer.self_attn.in_proj_bias.detach().double().numpy()
    query, key = (part.reshape(BATCH, TOKENS, 2, 8).swapaxes(1, 2) for part in np.split(projected, 3, axis=-1)[:2])
    real = (batch["src_key_padding_mask"] == 0).numpy()
    allowed = np.broadcast_to(real[:, None, None], (BATCH, 2, TOKENS, TOKENS))
    wanted = reference(query, key, allowed, np.zeros(allowed.shape), 8**-0.5)
    np.testing.assert_allclose(maps_of(model, batch)[1].numpy(), wanted, atol=1e-6)


def test_all_padding_gives_zero_rows_and_no_nan() -> None:
    entry = BY_NAME["torch_encoder-post-batch-first"]
    batch = entry.batch("right")
    batch["src_key_padding_mask"][1] = True
    maps = maps_of(entry.model(), batch)
    assert torch.equal(maps[1][1], torch.zeros(2, TOKENS, TOKENS))
    assert row_sum_error(maps[1][[0, 2]]) < 1e-5


def test_a_shared_block_is_as_many_layers_as_calls() -> None:
    maps = maps_of(BY_NAME["albert-shared"].model(), texts("right"))
    assert list(maps) == list(range(1, 7))
    assert not torch.equal(maps[1], maps[6])


def test_maps_of_low_precision_are_float32() -> None:
    model = BY_NAME["llama-grouped"].model()
    exact = maps_of(model, texts("right"))[1]
    for implementation in ("sdpa", "eager"):
        rough = model_with(BY_NAME["llama-grouped"], implementation).to(torch.bfloat16)
        found = maps_of(rough, texts("right"))[1]
        assert found.dtype == torch.float32
        assert row_sum_error(found, texts("right")["attention_mask"].bool()) < 1e-6
        assert 1e-6 < (rows(found, "right") - rows(exact, "right")).abs().max() < 0.1


@pytest.mark.parametrize("name", ["bert-tiny", "torch_encoder-pre-batch-first"])
def test_autocast_does_not_round_the_maps(name: str) -> None:
    entry = BY_NAME[name]
    with torch.autocast("cpu", torch.bfloat16):
        maps = maps_of(entry.model(), entry.batch("none"))
    assert maps[3].dtype == torch.float32
    assert row_sum_error(maps[3]) < 1e-6


def test_compiled_model_is_watched_uncompiled() -> None:
    model: Any = torch.compile(BY_NAME["bert-tiny"].model(), backend="eager")
    with torch.no_grad():
        model(**texts("right"))
    assert list(maps_of(model, texts("right"))) == [1, 2, 3]


def blind(model: Any, layer: int) -> None:
    """Let one layer attend in numpy, which stands for a kernel that is no torch function."""
    attention = model.encoder.layer[layer - 1].attention.self
    attention.forward = lambda hidden, *args, **kwargs: (torch.from_numpy(hidden.numpy() * 0.5), None)


def test_kernel_that_torch_cannot_see_into() -> None:
    model = BY_NAME["bert-tiny"].model()
    blind(model, 2)
    with pytest.raises(NoAttentionMap, match=r"at layer 2 but got none.* attn_implementation=\"sdpa\"") as caught:
        maps_of(model, texts("right"))
    assert caught.value.layer == 2
    assert "flash" in caught.value.reason
    assert hooks_left(model) == 0
    assert not torch.overrides.has_torch_function((torch.zeros(1),))


def test_one_can_go_on_without_a_map() -> None:
    model, missing, seen = BY_NAME["bert-tiny"].model(), [], []
    blind(model, 2)
    anatomy = find_anatomy(model)
    with torch.no_grad(), anatomy.watch_attention(lambda layer, maps_BHNN: seen.append(layer), missing.append):
        model(**texts("right"))
    assert seen == [1, 3]
    assert [error.layer for error in missing] == [2]


def test_several_maps_in_one_call() -> None:
    model = BY_NAME["bert-tiny"].model()
    attention = model.encoder.layer[0].attention.self
    once = attention.forward
    attention.forward = lambda *args, **kwargs: (once(*args, **kwargs)[0] - once(*args, **kwargs)[0], None)
    with pytest.raises(NoAttentionMap, match=r"at layer 1 but got 2, .*differential") as caught:
        maps_of(model, texts("right"))
    assert caught.value.layer == 1


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_key_value_cache_is_not_square(implementation: str) -> None:
    model = model_with(BY_NAME["llama-llama"], implementation)
    ids = texts("none")["input_ids"]
    with torch.no_grad():
        past = model(ids[:, :4], use_cache=True).past_key_values
    with pytest.raises(NoAttentionMap, match=r"\(3, 2, 2, 6\) for 2 tokens.*use_cache=False"):
        maps_of(model, {"input_ids": ids[:, 4:], "past_key_values": past})


def test_unknown_blocks_have_no_maps() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with (
        pytest.raises(NoAttentionMap, match="every layer") as caught,
        watch_attention(find_anatomy(model, "*"), lambda layer, maps_BHNN: None),
    ):
        pass
    assert caught.value.layer is None


def test_softmax_outside_attention_is_no_map() -> None:
    model = BY_NAME["bert-tiny"].model()
    model.encoder.layer[0].intermediate.register_forward_hook(
        lambda module, args, output: torch.zeros(BATCH, 2, TOKENS, TOKENS).softmax(dim=-1).sum() * 0 + output
    )
    assert list(maps_of(model, texts("right"))) == [1, 2, 3]


def test_maps_survive_what_the_model_does_to_its_own() -> None:
    model = model_with(BY_NAME["mpnet-tiny"], "eager")
    plain = maps_of(model, texts("right"))[1]
    model.encoder.layer[0].attention.attn.dropout.register_forward_pre_hook(lambda module, args: args[0].zero_())
    assert torch.equal(maps_of(model, texts("right"))[1], plain)


def test_a_sink_takes_its_part_of_every_row() -> None:
    config = transformers.GptOssConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GptOssModel(config).eval()
    for layer in model.layers:
        layer.self_attn.sinks.data.normal_()
    ids, seen = {"input_ids": torch.randint(20, (BATCH, TOKENS))}, dict[tuple[int, str], Tensor]()
    anatomy, maps = find_anatomy(model), dict[int, Tensor]()
    with (
        torch.no_grad(),
        anatomy.watch(lambda layer, site, x: seen.__setitem__((layer, site), x.clone()), ("normed", "attention")),
        anatomy.watch_attention(maps.__setitem__),
    ):
        model(**ids)
    for layer, maps_BHNN in maps.items():
        assert maps_BHNN.shape == (BATCH, 4, TOKENS, TOKENS)
        assert bool((maps_BHNN.sum(dim=-1) < 0.99).all())
        rebuilt = value_projection(model, layer - 1).attention_output(maps_BHNN, seen[layer, "normed"])
        assert_close(rebuilt, seen[layer, "attention"], f"attention of layer {layer}")
    assert list(maps) == [1, 2]


def test_tokens_first_is_seen_where_nobody_has_told_it() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attn, self.mlp = nn.LayerNorm(8), nn.MultiheadAttention(8, 2), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            x = x + self.attn(y, y, y, need_weights=False)[0]
            return x + self.mlp(x).relu()

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).eval()
    assert {one.shape for one in maps_of(model, {"input": torch.randn(5, 3, 8)}).values()} == {(3, 2, 5, 5)}


def test_places_of_an_image_are_tokens() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mlp = nn.LayerNorm(8), nn.Linear(8, 8)
            self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x).flatten(1, 2)
            x = x + self.attn(y, y, y, need_weights=False)[0].view_as(x)
            return x + self.mlp(x).relu()

    torch.manual_seed(0)
    model, image = nn.Sequential(Block(), Block()).eval(), torch.randn(3, 4, 5, 8)
    anatomy, seen = find_anatomy(model), dict[int, Tensor]()
    wire(anatomy.blocks.values(), lambda: model(image))
    with torch.no_grad(), anatomy.watch_attention(seen.__setitem__):
        model(image)
    assert {one.shape for one in seen.values()} == {(3, 2, 20, 20)}


def test_rows_that_do_not_sum_to_one_are_told_not_refused() -> None:
    maps_BHNN = torch.eye(3).repeat(2, 1, 1, 1)
    maps_BHNN[1, 0, 2] = 0.5
    assert row_sum_error(maps_BHNN) == 0.5
    assert row_sum_error(maps_BHNN, torch.tensor([[True] * 3, [True, True, False]])) == 0.0
    assert row_sum_error(torch.zeros(0, 1, 3, 3)) == 0.0
