"""What is found of the blocks of real models is what hooks and paths written by hand show."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.entries import ENTRIES
from tests.models.entry import Entry, real_tokens
from tests.models.rebuilding import at_real
from tests.models.test_hosts import assert_close, at_real_tokens, observe_by_hand
from unsmooth.errors import UnsmoothError
from unsmooth.models import Anatomy, find_anatomy, find_stacks
from unsmooth.models.hooks import whole_sequences
from unsmooth.models.host import Cross
from unsmooth.models.wire import (
    deep_copy,
    forget_pass,
    found_attention,
    found_cross,
    found_taps,
    found_wiring,
    parts_of,
    remember_pass,
    run_standard,
    standard_batch,
    wire,
)
from unsmooth.models.wiring import wired_values

BY_NAME = {entry.name: entry for entry in ENTRIES}


def found_anatomy(model: nn.Module, batch: Mapping[str, Any]) -> Anatomy:
    """The anatomy of a model as it is found by running it, whatever its host says."""
    anatomy = find_anatomy(model)

    def run() -> None:
        with torch.no_grad(), whole_sequences(model):
            model(**batch)

    wire(anatomy.blocks.values(), run)
    found = {"taps": found_taps, "wiring": found_wiring, "attention_module": found_attention}
    return dataclasses.replace(anatomy, host=dataclasses.replace(anatomy.host, name="found", **found))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_sites_are_those_of_hooks_by_hand(entry: Entry) -> None:
    model, padding = entry.model(), entry.paddings[0]
    batch = entry.batch(padding)
    anatomy, seen = found_anatomy(model, batch), dict[tuple[int, str], Tensor]()
    wanted = observe_by_hand(entry, model, batch)
    with torch.no_grad(), anatomy.watch(lambda n, site, x: seen.__setitem__((n, site), x.clone()), anatomy.sites):
        model(**batch)
    assert set(seen) == set(wanted)
    for key, tensor in wanted.items():
        assert_close(at_real_tokens(seen[key], padding), at_real_tokens(tensor, padding), f"{key[1]} of layer {key[0]}")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_weights_rebuild_attention_at_every_layer_of_other_data(entry: Entry) -> None:
    """Found on one batch of one block of each kind; true of all blocks and of what the search has not seen."""
    model, padding = entry.model(), entry.paddings[-1]
    anatomy = found_anatomy(model, entry.batch(entry.paddings[0]))
    sites, maps = dict[tuple[int, str], Tensor](), dict[int, Tensor]()
    order: list[nn.Module] = []
    hooks = [
        block.register_forward_pre_hook(lambda module, args: order.append(module)) for block in anatomy.blocks.values()
    ]
    with (
        torch.no_grad(),
        anatomy.watch(lambda n, site, x: sites.__setitem__((n, site), x.clone()), ("normed", "attention")),
        anatomy.watch_attention(maps.__setitem__),
    ):
        model(**entry.batch(padding))
    for hook in hooks:
        hook.remove()
    for layer, block in enumerate(order, start=1):
        wiring = found_wiring(block)
        assert wiring.style == entry.style
        assert tuple(f"{entry.blocks}.{path}" for path in wiring.norms) == entry.norms
        rebuilt = wired_values(block, wiring).attention_output(maps[layer], sites[layer, "normed"])
        wanted = at_real(sites[layer, "attention"], padding)
        assert (at_real(rebuilt, padding) - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize(
    "name", ["bert-tiny", "llama-grouped", "gpt2-tiny", "vit-tiny", "torch_encoder-pre-batch-first"]
)
def test_without_data_the_same_is_found(name: str) -> None:
    entry = BY_NAME[name]
    model = entry.model()
    by_data = [parts_of(block) for block in found_anatomy(model, entry.batch(entry.paddings[0])).blocks.values()]
    again = copy.deepcopy(model).train()
    before, random = [one.training for one in again.modules()], torch.get_rng_state()
    blocks = list(find_anatomy(again).blocks.values())
    wire(blocks, lambda: run_standard(again, blocks))
    assert [parts_of(block) for block in blocks] == by_data
    assert [one.training for one in again.modules()] == before
    assert torch.equal(random, torch.get_rng_state())


def test_a_block_is_searched_once_and_again_when_it_changes() -> None:
    model, ran = BY_NAME["llama-llama"].model(), []
    blocks = list(model.layers)

    def run() -> None:
        ran.append(1)
        run_standard(model, blocks)

    wire(blocks, run)
    wire(blocks, run)
    assert ran == [1]
    blocks[0].self_attn.v_proj = nn.Linear(16, 8)
    wire(blocks, run)
    assert ran == [1, 1]
    wiring = found_wiring(blocks[0])
    assert torch.equal(wired_values(blocks[0], wiring).b_v[0], blocks[0].self_attn.v_proj.bias)  # type: ignore[index]


def test_what_was_found_can_be_pickled() -> None:
    model = BY_NAME["llama-llama"].model()
    parts = parts_of(find_anatomy(model).blocks["layers.0"])
    assert pickle.loads(pickle.dumps(parts)) == parts


def test_other_threads_are_not_seen() -> None:
    entry = BY_NAME["llama-llama"]
    model, batch = entry.model(), entry.batch("right")
    blocks = list(model.layers)

    def elsewhere() -> None:
        other = threading.Thread(target=lambda: model(**batch))
        other.start()
        other.join()

    wire(blocks, elsewhere)
    assert "not called" in parts_of(blocks[0]).refused["block"]


def test_cross_attention_is_found_and_rebuilds_its_branch() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 2, 24, batch_first=True, norm_first=True)
    model = nn.TransformerDecoder(layer, 2).eval()
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    blocks = list(model.layers)
    wire(blocks, lambda: model(x, memory))
    block, seen = blocks[1], {}
    assert set(found_taps(block)) == {"normed", "attention", "cross", "mid", "mlp"}
    block.register_forward_pre_hook(lambda module, args: seen.update(memory=args[1]))
    block.norm2.register_forward_hook(lambda module, args, output: seen.update(queries=output))
    block.dropout2.register_forward_hook(lambda module, args, output: seen.update(branch=output))
    with torch.no_grad():
        model(x, memory)
    maps = block.multihead_attn(seen["queries"], memory, memory, average_attn_weights=False)[1]
    assert isinstance(found_cross(block), Cross)
    assert found_cross(block).module == "multihead_attn"
    rebuilt = found_cross(block).values(block).attention_output(maps, memory)
    torch.testing.assert_close(rebuilt, seen["branch"], atol=1e-5, rtol=1e-5)


def test_what_is_not_there_is_refused_in_one_line() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(UnsmoothError, match="weights that its numbers prove in Sequential"):
        found_wiring(block)
    with pytest.raises(UnsmoothError, match="says what it takes"):
        standard_batch(block)


def test_padding_of_the_batch_does_not_matter() -> None:
    entry = BY_NAME["llama-llama"]
    found = []
    for padding in entry.paddings:
        model = entry.model()
        assert not bool(real_tokens(padding).all())
        anatomy = found_anatomy(model, entry.batch(padding))
        found.append([parts_of(block) for block in anatomy.blocks.values()])
    assert found[0] == found[1]


def two_towers() -> nn.Module:
    """A Llava, whose model wants as many image tokens as its images make."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaModel

    small: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    vision = CLIPVisionConfig(**small, num_attention_heads=2, image_size=8, patch_size=4)
    text = LlamaConfig(**small, num_attention_heads=2, num_key_value_heads=2, vocab_size=40)
    torch.manual_seed(0)
    return LlavaModel(LlavaConfig(vision_config=vision, text_config=text, image_token_index=39)).eval()


def test_without_data_each_tower_takes_its_own_standard_batch() -> None:
    model = two_towers()
    with pytest.raises(ValueError, match="mage features"):
        model(**standard_batch(model))
    found = {stack.stack: [*map(parts_of, stack.blocks.values())] for stack in find_stacks(model)}
    assert set(found) == {"vision_tower", "language"}
    assert all(parts.wiring is not None for each in found.values() for parts in each)
    assert [parts.wiring.causal for parts in found["language"] if parts.wiring] == [True, True]


def test_a_pass_that_was_kept_tells_more_and_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.models.wire.run_standard", lambda model, blocks: "says nothing")
    entry = BY_NAME["llama-llama"]
    model, batch, calls = entry.model(), entry.batch("right"), []
    blocks = list(find_anatomy(model).blocks.values())
    assert parts_of(blocks[0]).refused == {"block": "it is not called in a pass (says nothing)"}

    def call(one: nn.Module, given: Mapping[str, Any]) -> None:
        calls.append(1)
        one(**given)

    remember_pass(blocks, call, model, batch)
    forget_pass(blocks[:1])
    assert "block" in parts_of(blocks[0]).refused
    assert parts_of(blocks[1]).wiring is not None
    assert parts_of(blocks[0]).wiring is not None
    remember_pass(blocks, call, model, batch)  # nothing is open any more
    assert parts_of(blocks[1]).wiring is not None
    assert calls == [1]
    copied = deep_copy(model)
    assert parts_of(copied.layers[1]) == parts_of(blocks[1])


def test_a_kept_pass_does_not_keep_the_model() -> None:
    model = BY_NAME["llama-llama"].model()
    remember_pass(list(model.layers), lambda one, given: one(**given), model, {})
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_model_that_cannot_run_without_hooks_of_its_library_keeps_them() -> None:
    model, heard = BY_NAME["llama-llama"].model(), []

    def theirs(*given: Any) -> None:
        heard.append("theirs")

    theirs.__module__ = "transformers.utils.output_capturing"
    model.layers[0].register_forward_hook(theirs)
    model.layers[1].register_forward_hook(lambda *given: heard.append("the user's"))
    assert parts_of(find_anatomy(model).blocks["layers.0"]).wiring is not None
    assert set(heard) == {"theirs"}


def test_a_pass_of_a_compiled_model_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsmooth.models.wire.run_standard", lambda model, blocks: None)
    entry = BY_NAME["llama-llama"]
    model: Any = torch.compile(entry.model(), backend="eager")
    with torch.no_grad():
        model(**entry.batch("right"))
    blocks = list(find_anatomy(model).blocks.values())
    remember_pass(blocks, lambda one, given: one(**given), model, entry.batch("right"))
    assert parts_of(blocks[0]).wiring is not None
