"""Models with several stacks or with stages: independent hooks and algebra agree at every layer and site of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.models.entry import modules_at
from tests.models.stack_entries import BATCH, STACK_ENTRIES, Stack, StackEntry
from unsmooth.errors import UnsmoothError
from unsmooth.models import NoAttentionMap, find_anatomy, find_stacks, value_projection
from unsmooth.models.host import IMAGE, TARGET, TEXT, Reads

Seen = dict[tuple[int, str], Tensor]
BY_NAME = {entry.name: entry for entry in STACK_ENTRIES}
each_model = pytest.mark.parametrize("entry", STACK_ENTRIES, ids=lambda entry: entry.name)
CASES = [(entry, name) for entry in STACK_ENTRIES for name in entry.stacks]
each_stack = pytest.mark.parametrize(("entry", "name"), CASES, ids=[f"{e.name}-{n or 'only'}" for e, n in CASES])
CROSSING = [(entry, name) for entry, name in CASES if "cross" in entry.stacks[name].paths]


def observe(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Seen]:
    """What our hooks see at every site of every stack, in one pass."""
    seen: dict[str, Seen] = defaultdict(dict)
    with torch.no_grad(), ExitStack() as open_together:
        for anatomy in find_stacks(model):

            def note(layer: int, site: str, tensor: Tensor, own: Seen = seen[anatomy.stack]) -> None:
                assert (layer, site) not in own
                own[layer, site] = tensor.clone()

            open_together.enter_context(anatomy.watch(note, anatomy.sites))
        model(**batch)
    return seen


def observe_by_hand(entry: StackEntry, stack: Stack, model: nn.Module) -> Seen:
    """What hooks on the modules named in the entry see, told apart by call order alone."""
    calls: dict[str, list[Tensor]] = defaultdict(list)

    def keep(site: str, value: Any) -> None:
        tensor = value if isinstance(value, Tensor) else value[0]
        calls[site].append((tensor if entry.batch_first else tensor.transpose(0, 1)).clone())

    def attach(site: str, template: str, end: str) -> list[Any]:
        modules = modules_at(model, template).values()
        assert modules, template
        if end == "output":
            return [m.register_forward_hook(lambda _, args, output: keep(site, output)) for m in modules]
        place = 1 if end == "second input" else 0
        return [m.register_forward_pre_hook(lambda _, args: keep(site, args[place])) for m in modules]

    everywhere = {"stem": stack.stem, "residual": (stack.blocks, "output"), **stack.paths}
    if stack.memory is not None:
        everywhere["memory"] = stack.memory
    handles = [handle for site, (path, end) in everywhere.items() for handle in attach(site, path, end)]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            model(**entry.batch())
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for handle in handles:
            handle.remove()
    first = {(0, name): calls.pop(name)[0] for name in ("stem", "memory") if name in calls}
    return {(0, "residual" if name == "stem" else name): tensor for (_, name), tensor in first.items()} | {
        (layer, site): tensor for site, tensors in calls.items() for layer, tensor in enumerate(tensors, start=1)
    }


def at_real(tensor: Tensor, stack: Stack) -> Tensor:
    return tensor.flatten(0, 1) if stack.real is None else tensor[stack.real]


def assert_close(actual: Tensor, wanted: Tensor, what: str) -> None:
    assert actual.shape == wanted.shape, what
    assert (actual - wanted).abs().max() <= 1e-5 * wanted.abs().max().clamp(min=1), what


@each_model
def test_stacks_by_name(entry: StackEntry) -> None:
    found = find_stacks(entry.model())
    assert {one.stack: one.host.name for one in found} == {name: s.host for name, s in entry.stacks.items()}
    for one in found:
        assert one.prefix_tokens == entry.stacks[one.stack].prefix_tokens


@each_stack
def test_independent_hooks_agree(entry: StackEntry, name: str) -> None:
    model, stack = entry.model(), entry.stacks[name]
    ours, theirs = observe(model, entry.batch())[name], observe_by_hand(entry, stack, model)
    theirs.pop((0, "memory"), None)
    sites = ("residual", *stack.paths)
    assert set(ours) == {(0, "residual"), *((i + 1, site) for i in range(stack.calls) for site in sites)}
    assert set(ours) == set(theirs)
    for (layer, site), tensor in theirs.items():
        wanted = at_real(tensor, stack)
        assert wanted.abs().mean() > 1e-3, "a tensor near zero would agree with anything"
        assert_close(at_real(ours[layer, site], stack), wanted, f"{site} of layer {layer}")


@each_stack
def test_algebra_of_the_block_holds(entry: StackEntry, name: str) -> None:
    model, stack = entry.model(), entry.stacks[name]
    seen = observe(model, entry.batch())[name]
    numbers = list(modules_at(model, stack.blocks))
    for layer in range(1, stack.calls + 1):
        before, at = seen[layer - 1, "residual"], {site: seen[layer, site] for site in ("residual", *stack.paths)}
        if stack.stages is not None and layer > 1 and stack.stages[layer - 1] != stack.stages[layer - 2]:
            before = at["mid"] - at["attention"]  # patches were merged in between
        norms = [model.get_submodule(path.format(*numbers[layer - 1])) for path in stack.norms]
        with torch.no_grad():
            wanted = algebra(stack, before, at, norms)
        for site, tensor in wanted.items():
            assert_close(at_real(at[site], stack), at_real(tensor, stack), f"{site} of layer {layer}")


def algebra(stack: Stack, before: Tensor, at: Mapping[str, Tensor], norms: list[nn.Module]) -> dict[str, Tensor]:
    """What each style of block must give, from the other sites alone."""
    branches = [at[site] for site in ("attention", "cross") if site in at]
    if stack.style == "pre":
        return {"normed": norms[0](before), "mid": before + sum(branches), "residual": at["mid"] + at["mlp"]}
    stream = before
    for norm, branch in zip(norms, branches, strict=False):
        stream = norm(stream + branch)
    return {"normed": before, "mid": stream, "residual": norms[-1](at["mid"] + at["mlp"])}


WAYS = [(e, n, way) for e, n in CASES for way in (("own",) if e.name.startswith("torch") else ("sdpa", "eager"))]


@pytest.mark.parametrize(("entry", "name", "way"), WAYS, ids=[f"{e.name}-{n or 'only'}-{way}" for e, n, way in WAYS])
def test_attention_is_rebuilt_from_weights_and_maps(entry: StackEntry, name: str, way: str) -> None:
    model, stack = entry.model(), entry.stacks[name]
    if way != "own":
        model.set_attn_implementation(way)
    anatomy = next(one for one in find_stacks(model) if one.stack == name)
    maps: dict[int, Tensor] = {}
    missing: list[NoAttentionMap] = []
    with torch.no_grad(), anatomy.watch_attention(maps.__setitem__, missing.append):
        seen = observe(model, entry.batch())[name]
    pattern = next(iter(anatomy.blocks)).replace(".0", ".*")
    for layer in range(1, stack.calls + 1):
        tokens = seen[layer, "normed"].shape[1]
        if layer not in maps:
            assert any(one.layer == layer and "windows" in one.reason for one in missing)
            continue
        assert maps[layer].shape == (BATCH, maps[layer].shape[1], tokens, tokens)
        values = value_projection(model, layer - 1, blocks=pattern)
        rebuilt = values.attention_output(maps[layer], seen[layer, "normed"])
        assert_close(at_real(rebuilt, stack), at_real(seen[layer, "attention"], stack), f"attention of layer {layer}")
        x = 3 * torch.randn(4, values.dim, generator=torch.Generator().manual_seed(0)) + 1
        norm = model.get_submodule(stack.norms[0].format(*list(modules_at(model, stack.blocks))[layer - 1]))
        assert_close(values.norm.apply(x), norm(x).detach(), "norm")
        assert values.place == stack.style
    # Places of windows that are filled up have a share of attention, and no token.
    assert len(maps) == (2 if entry.name == "swin-filled-up" else stack.calls)


@pytest.mark.parametrize(("entry", "name"), CROSSING, ids=[f"{e.name}-{n or 'only'}" for e, n in CROSSING])
def test_cross_attention_is_rebuilt_from_weights_maps_and_the_other_stack(entry: StackEntry, name: str) -> None:
    model, stack = entry.model(), entry.stacks[name]
    by_hand = observe_by_hand(entry, stack, model)
    memory = by_hand[0, "memory"]
    anatomy = next(one for one in find_stacks(model) if one.stack == name)
    maps: dict[int, Tensor] = {}
    with torch.no_grad(), anatomy.watch_attention(maps.__setitem__, site="cross"):
        model(**entry.batch())
    pattern = next(iter(anatomy.blocks)).replace(".0", ".*")
    assert sorted(maps) == list(range(1, stack.calls + 1))
    for layer, map_BHNM in maps.items():
        assert map_BHNM.shape[2:] == (by_hand[layer, "cross"].shape[1], memory.shape[1])
        values = value_projection(model, layer - 1, blocks=pattern, site="cross")
        rebuilt = values.attention_output(map_BHNM, memory)
        assert_close(at_real(rebuilt, stack), at_real(by_hand[layer, "cross"], stack), f"cross of layer {layer}")
        own = value_projection(model, layer - 1, blocks=pattern)
        assert (own.attention_output(map_BHNM, memory) - rebuilt).abs().max() > 1e-2


@each_model
def test_watching_does_not_change_the_output(entry: StackEntry) -> None:
    model, batch = entry.model(), entry.batch()

    def output() -> Tensor:
        found = model(**batch)
        return found if isinstance(found, Tensor) else found[0]

    with torch.no_grad():
        plain = output()
        with ExitStack() as open_together:
            for one in find_stacks(model):
                open_together.enter_context(one.watch(lambda layer, site, tensor: None, one.sites))
            watched = output()
    finite = plain.isfinite()  # torch's fused layers have NaN or zeros where all is padding
    assert_close(watched[finite], plain[finite], "output")


@pytest.mark.parametrize("name", ["t5-relu", "whisper", "clip", "siglip"])
def test_hidden_states_of_the_model_agree(name: str) -> None:
    entry = BY_NAME[name]
    model, batch = entry.model(), entry.batch()
    seen = observe(model, batch)
    with torch.no_grad():
        for stack, own in entry.stacks.items():
            hidden = hidden_states(model, stack, batch)
            assert len(hidden) == own.calls + 1
            for layer in range(own.calls):  # the last one may be after the final norm
                assert_close(seen[stack][layer, "residual"], hidden[layer], f"{stack} {layer}")


def hidden_states(model: Any, stack: str, batch: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """What the library itself returns."""
    if stack in ("text", "vision"):
        part = getattr(model, f"{stack}_model")
        given = {key: value for key, value in batch.items() if (key == "pixel_values") == (stack == "vision")}
        found: tuple[Tensor, ...] = part(**given, output_hidden_states=True).hidden_states
        return found
    return getattr(model(**batch, output_hidden_states=True), f"{stack}_hidden_states")  # type: ignore[no-any-return]


def test_hidden_states_of_a_swin_are_those_of_its_stages() -> None:
    entry = BY_NAME["swin-shifted"]
    model, batch = entry.model(), entry.batch()
    seen = observe(model, batch)[""]
    with torch.no_grad():
        first, *merged, last = model(**batch, output_hidden_states=True).hidden_states
    assert_close(seen[0, "residual"], first, "first")
    assert_close(seen[5, "residual"], last, "last")
    for stage, layer in ((0, 2), (1, 4)):
        with torch.no_grad():
            after = model.encoder.layers[stage].downsample(seen[layer, "residual"], (8 >> stage, 8 >> stage))
        assert_close(after, merged[stage], f"stage {stage}")


@each_stack
def test_stages_are_told_while_watching(entry: StackEntry, name: str) -> None:
    model, stack = entry.model(), entry.stacks[name]
    anatomy, stages = next(one for one in find_stacks(model) if one.stack == name), []
    with torch.no_grad(), anatomy.watch(lambda layer, site, tensor: stages.append(watch.stage)) as watch:
        model(**entry.batch())
    wanted = (None,) * stack.calls if stack.stages is None else stack.stages
    assert stages == [wanted[0], *wanted]


def test_padding_is_read_off_torch_decoder_layers() -> None:
    entry = BY_NAME["torch-both-pre-tokens-first"]
    model = entry.model()
    encoder, decoder = find_stacks(model)
    with (
        torch.no_grad(),
        encoder.watch(lambda *seen: None) as source,
        decoder.watch(lambda *seen: None) as target,
    ):
        model(**entry.batch())
    assert source.real_tokens_BN is not None
    assert target.real_tokens_BN is not None
    assert torch.equal(source.real_tokens_BN, entry.stacks["encoder"].real)
    assert torch.equal(target.real_tokens_BN, entry.stacks["decoder"].real)


def test_what_a_batch_calls_the_tokens_of_each_stack() -> None:
    t5, clip, whisper = (find_stacks(BY_NAME[name].model()) for name in ("t5-relu", "clip", "whisper"))
    assert [one.reads for one in t5] == [TEXT, TARGET]
    assert [one.reads for one in clip] == [TEXT, IMAGE]
    assert [one.reads.tokens for one in whisper] == ["input_features", "decoder_input_ids"]
    assert whisper[0].reads.each == 2


def test_a_tower_alone_is_one_stack() -> None:
    model = BY_NAME["clip"].model()
    text, vision = find_anatomy(model.text_model), find_anatomy(model.vision_model)
    assert (text.stack, text.prefix_tokens, text.reads) == ("", 0, TEXT)
    assert (vision.stack, vision.prefix_tokens, vision.reads) == ("", 1, Reads("pixel_values", "token_mask"))


def test_a_pattern_picks_a_stack_or_some_of_its_blocks() -> None:
    model = BY_NAME["t5-relu"].model()
    found = find_anatomy(model, "decoder.block.1")
    assert (found.stack, len(found.blocks), found.part) == ("decoder", 1, model.decoder)
    with pytest.raises(UnsmoothError, match=r"2 \(encoder.block.\*, decoder.block.\*\)"):
        find_anatomy(model)


def test_stacks_of_two_families_and_of_wrapped_models() -> None:
    bert = transformers.BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, vocab_size=9)
    cross = transformers.BertConfig(**{**bert.to_dict(), "is_decoder": True, "add_cross_attention": True})
    both = transformers.EncoderDecoderModel(
        encoder=transformers.BertModel(bert), decoder=transformers.BertLMHeadModel(cross)
    )
    assert [(one.stack, one.reads) for one in find_stacks(both)] == [("encoder", TEXT), ("decoder", TARGET)]
    wrapped = nn.Sequential(BY_NAME["whisper"].model())
    assert [one.stack for one in find_stacks(wrapped)] == ["encoder", "decoder"]


def test_layers_start_over_when_a_part_is_called_by_itself() -> None:
    entry, layers = BY_NAME["t5-relu"], []
    model = entry.model()
    encoder = find_stacks(model)[0]
    with torch.no_grad(), encoder.watch(lambda layer, site, tensor: layers.append(layer)):
        for _ in range(2):
            model.encoder(input_ids=entry.batch()["input_ids"])
    assert layers == [0, 1, 2, 3] * 2


def test_cross_attention_where_there_is_none() -> None:
    model = BY_NAME["t5-relu"].model()
    with pytest.raises(UnsmoothError, match=r"cross-attention in block 'encoder.block.0' but got T5Block"):
        value_projection(model, 0, blocks="encoder.block.*", site="cross")
    with (
        pytest.raises(NoAttentionMap, match="without cross-attention"),
        find_stacks(model)[0].watch_attention(lambda *seen: None, site="cross"),
    ):
        pass
    with pytest.raises(UnsmoothError, match="a site that t5 blocks have"):
        find_stacks(model)[0].check_sites(["cross"])
