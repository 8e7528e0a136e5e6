"""A host counts when independent hooks and the algebra of its blocks agree at every layer and site."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.entries import ENTRIES
from tests.models.entry import Entry, Padding, modules_at, real_tokens
from tests.models.stack_entries import STACK_ENTRIES
from unsmooth.models import HOSTS, find_anatomy

Seen = dict[tuple[int, str], Tensor]


def each_case(wanted: Callable[[Entry], bool] = lambda entry: True) -> pytest.MarkDecorator:
    """Every entry, or those wanted, with every way of padding."""
    cases = [(entry, padding) for entry in ENTRIES if wanted(entry) for padding in entry.paddings]
    return pytest.mark.parametrize(("entry", "padding"), cases, ids=[f"{e.name}-{p}" for e, p in cases])


def observe(model: nn.Module, batch: Mapping[str, Any]) -> Seen:
    """What our own hooks see, at every site."""
    anatomy = find_anatomy(model)
    seen: Seen = {}

    def note(layer: int, site: str, tensor: Tensor) -> None:
        assert (layer, site) not in seen
        seen[layer, site] = tensor.clone()

    with torch.no_grad(), anatomy.watch(note, anatomy.sites):
        model(**batch)
    return seen


def observe_by_hand(entry: Entry, model: nn.Module, batch: Mapping[str, Any]) -> Seen:
    """What hooks on the modules named in the entry see, told apart by call order alone."""
    calls: dict[str, list[Tensor]] = defaultdict(list)

    def keep(site: str, value: Any) -> None:
        tensor = value if isinstance(value, Tensor) else value[0]
        calls[site].append((tensor if entry.batch_first else tensor.transpose(0, 1)).clone())

    def attach(site: str, template: str, end: str) -> list[Any]:
        modules = modules_at(model, template).values()
        if end == "output":
            return [m.register_forward_hook(lambda _, args, output: keep(site, output)) for m in modules]
        return [m.register_forward_pre_hook(lambda _, args: keep(site, args)) for m in modules]

    everywhere = {"stem": entry.stem, "residual": (entry.blocks, "output"), **entry.paths}
    handles = [handle for site, (path, end) in everywhere.items() for handle in attach(site, path, end)]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            model(**batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for handle in handles:
            handle.remove()
    layer_0 = calls.pop("stem")[0]
    return {(0, "residual"): layer_0} | {
        (layer, site): tensor
        for site, tensors in calls.items()
        for layer, tensor in enumerate(joined(tensors, entry.calls), start=1)
    }


def joined(tensors: list[Tensor], layers: int) -> list[Tensor]:
    """One tensor a layer, where a layer may run its MLP in several chunks of tokens."""
    chunks = len(tensors) // layers
    return [torch.cat(tensors[i : i + chunks], dim=1) for i in range(0, len(tensors), chunks)]


def at_real_tokens(tensor: Tensor, padding: Padding) -> Tensor:
    return tensor.flatten(0, 1) if padding == "none" else tensor[real_tokens(padding)]


def assert_close(actual: Tensor, wanted: Tensor, what: str) -> None:
    scale = wanted.abs().max().clamp(min=1)
    assert (actual - wanted).abs().max() <= 1e-5 * scale, what


def test_every_host_has_an_entry() -> None:
    stacks = {stack.host for entry in STACK_ENTRIES for stack in entry.stacks.values()}
    assert {entry.host for entry in ENTRIES} | stacks == set(HOSTS)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_wiring_is_what_the_entry_says(entry: Entry) -> None:
    anatomy = find_anatomy(entry.build())
    assert anatomy.host.wiring is not None, "every family that can be scanned can be given remedies"
    wiring = anatomy.host.wiring(next(iter(anatomy.blocks.values())))
    assert wiring.style == entry.style
    assert tuple(f"{entry.blocks}.{path}" for path in wiring.norms) == entry.norms


def test_every_block_class_of_every_host_has_an_entry() -> None:
    stacks = [(e.build, stack.blocks) for e in STACK_ENTRIES for stack in e.stacks.values()]
    every = [(e.build, e.blocks) for e in ENTRIES] + stacks
    built = {type(block).__name__ for build, blocks in every for block in modules_at(build(), blocks).values()}
    assert {name.rpartition(".")[2] for host in HOSTS.values() for name in host.blocks} == built


@each_case()
def test_independent_hooks_agree(entry: Entry, padding: Padding) -> None:
    model, batch = entry.model(), entry.batch(padding)
    ours, theirs = observe(model, batch), observe_by_hand(entry, model, batch)
    assert find_anatomy(model).host.name == entry.host
    assert set(ours) == set(theirs)
    sites = ("residual", *entry.paths)
    assert set(ours) == {(0, "residual"), *((i + 1, site) for i in range(entry.calls) for site in sites)}
    for (layer, site), tensor in theirs.items():
        wanted = at_real_tokens(tensor, padding)
        assert wanted.abs().mean() > 1e-3, "a tensor near zero would agree with anything"
        assert_close(at_real_tokens(ours[layer, site], padding), wanted, f"{site} of layer {layer}")


@each_case()
def test_algebra_of_the_block_holds(entry: Entry, padding: Padding) -> None:
    model = entry.model()
    seen = observe(model, entry.batch(padding))
    numbers = call_order(entry, model, padding)
    for layer in range(1, entry.calls + 1):
        at = {site: seen[layer, site] for site in find_anatomy(model).sites}
        before = seen[layer - 1, "residual"]
        first, second = (model.get_submodule(path.format(*numbers[layer - 1])) for path in entry.norms)
        with torch.no_grad():
            wanted = algebra(entry.style, before, at, first, second)
        for site, tensor in wanted.items():
            assert_close(at_real_tokens(at[site], padding), at_real_tokens(tensor, padding), f"{site} of layer {layer}")


def algebra(
    style: str, before: Tensor, at: Mapping[str, Tensor], first: nn.Module, second: nn.Module
) -> dict[str, Tensor]:
    """What each style of block must give, from the other sites alone."""
    if style == "post":
        return {
            "normed": before,
            "mid": first(before + at["attention"]),
            "residual": second(at["mid"] + at["mlp"]),
        }
    if style == "pre":
        return {
            "normed": first(before),
            "mid": before + at["attention"],
            "residual": at["mid"] + at["mlp"],
        }
    return {"normed": first(before), "residual": before + at["attention"] + at["mlp"]}


def call_order(entry: Entry, model: nn.Module, padding: Padding) -> list[tuple[str, ...]]:
    """The numbers in the path of each block called, in turn."""
    order: list[tuple[str, ...]] = []
    handles = [
        block.register_forward_pre_hook(lambda _, args, numbers=numbers: order.append(numbers))
        for numbers, block in modules_at(model, entry.blocks).items()
    ]
    with torch.no_grad():
        model(**entry.batch(padding))
    for handle in handles:
        handle.remove()
    return order


@each_case(lambda entry: entry.hidden_states)
def test_hidden_states_of_the_model_agree(entry: Entry, padding: Padding) -> None:
    model, batch = entry.model(), entry.batch(padding)
    seen = observe(model, batch)
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states
    assert len(hidden) == entry.calls + 1
    for layer in range(entry.calls):  # the last one is after the final norm in some families
        assert_close(seen[layer, "residual"], hidden[layer], f"layer {layer}")


@each_case()
def test_watching_does_not_change_the_output(entry: Entry, padding: Padding) -> None:
    # For nn.TransformerEncoder the plain pass is the fused one, which packs a padded batch.
    model, batch = entry.model(), entry.batch(padding)

    def output() -> Tensor:
        found = model(**batch)
        tensor = found if isinstance(found, Tensor) else found.last_hidden_state
        return at_real_tokens(tensor if entry.batch_first else tensor.transpose(0, 1), padding)

    anatomy = find_anatomy(model)
    with torch.no_grad():
        plain = output()
        with anatomy.watch(lambda layer, site, tensor: None, anatomy.sites):
            watched = output()
    assert_close(watched, plain, "output")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_tensors_handed_out_are_not_changed_afterwards(entry: Entry) -> None:
    model, kept, copies = entry.model(), [], []

    def keep(layer: int, site: str, tensor: Tensor) -> None:
        kept.append(tensor)
        copies.append(tensor.clone())

    anatomy = find_anatomy(model)
    with torch.no_grad(), anatomy.watch(keep, anatomy.sites):
        model(**entry.batch(entry.paddings[0]))
    assert all(map(torch.equal, kept, copies))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_prefix_tokens(entry: Entry) -> None:
    model = entry.model()
    assert HOSTS[entry.host].prefix_tokens(model) == entry.prefix_tokens


@each_case(lambda entry: entry.host == "torch_encoder")
def test_padding_is_read_off_torch_layers(entry: Entry, padding: Padding) -> None:
    model = entry.model()
    with torch.no_grad(), find_anatomy(model).watch(lambda layer, site, tensor: None) as watch:
        model(**entry.batch(padding))
    assert watch.real_tokens_BN is not None
    assert torch.equal(watch.real_tokens_BN, real_tokens(padding))
