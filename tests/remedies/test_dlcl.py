from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import unsmooth
from tests.remedies.by_hand import HANDS, POST, PRE, Edits, blocks_of, exact, near, streams
from tests.remedies.hosts import BY_NAME, DIM, LAYERS
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.remedies import applied, apply
from unsmooth.remedies.catalogue.dlcl import combine

EPS = {"vit": 1e-12, "bert": 1e-12, "llama": 1e-6}
ABLE = (*(name for name in POST if name != "albert"), *PRE, "neox_parallel")


def normed(name: str, x: Tensor, edit: Any) -> Tensor:
    centred = x if name == "llama" else x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + EPS.get(name, 1e-5)).sqrt() * edit.norm.weight
    return scaled if name == "llama" else scaled + edit.norm.bias


def combined(name: str, edits: list[Any], norm: str, groups: tuple[tuple[int, ...], ...] = ((0, 1, 2),)) -> Tensor:
    """Blocks written out; those of a group hand each other what they gave."""
    plain = exact(name)
    x, given = streams(name, plain)[0], {group: [] for group in groups}
    for layer, block in enumerate(blocks_of(plain)):
        out = HANDS[type(block).__name__](block)(x, Edits())
        for group in (group for group in groups if layer in group):
            history, edit = given[group], edits[layer]
            history.extend([] if history else [x])
            history.append(normed(name, out, edit) if norm == "each" else out)
            assert len(edit.weight) == len(history)
            out = sum(weight * one for weight, one in zip(edit.weight, history, strict=True))
            out = normed(name, out, edit) if norm == "sum" else out
        x = out
    return x


def test_a_combination_lies_in_memory_as_what_the_block_gave() -> None:
    # A matrix product of numbers that lie otherwise may round otherwise, and neutral would not be neutral.
    entered, gave = torch.randn(3, 5, 4), torch.randn(5, 3, 4).transpose(0, 1)
    found = combine([entered, gave], torch.tensor([0.0, 1.0]))
    assert found.stride() == gave.stride()
    assert torch.equal(found, gave)


def edits_of(model: Any) -> list[Any]:
    return [getattr(getattr(block, "unsmooth", None), "dlcl", None) for block in blocks_of(model)]


def trained(name: str, **options: Any) -> Any:
    model = apply(exact(name), "dlcl", **options)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for edit in filter(None, edits_of(model)):
            for parameter in edit.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.mark.parametrize("name", ABLE)
def test_each_block_reads_a_combination_of_all_before(name: str) -> None:
    model = trained(name)
    near(name, streams(name, model)[1], combined(name, edits_of(model), "sum" if name in POST else "each"))
    Snapshot.of(exact(name)).check(unsmooth.undo(model), copied=True)


@pytest.mark.parametrize(("name", "norm"), [("gpt2", "none"), ("gpt2", "sum"), ("bert", "each")])
def test_norms_may_stand_elsewhere(name: str, norm: str) -> None:
    model = trained(name, norm=norm)
    near(name, streams(name, model)[1], combined(name, edits_of(model), norm))


def test_it_starts_with_the_average() -> None:
    found = edits_of(apply(exact("gpt2"), "dlcl"))
    assert [edit.weight.tolist() for edit in found] == [[pytest.approx(1 / n)] * n for n in (2, 3, 4)]
    found = edits_of(apply(exact("gpt2"), "dlcl", start="last"))
    assert [edit.weight.tolist() for edit in found] == [[0, 1], [0, 0, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize("groups", [((0, 2),), ((1, 2),), ((0, 1), (2,))])
def test_blocks_without_it_are_passed_over(groups: tuple[tuple[int, ...], ...]) -> None:
    model = exact("bert")
    for group in groups:
        apply(model, "dlcl", layers=list(group))
    near("bert", streams("bert", model)[1], combined("bert", edits_of(model), "sum", groups))
    assert [one.layers for one in applied(model)] == list(groups)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_gradients(name: str) -> None:
    model = trained(name)
    found = [parameter for edit in edits_of(model) for parameter in edit.parameters()]
    wanted = torch.randn(2, 8, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    sides = (streams(name, model)[1], combined(name, edits_of(model), "sum" if name in POST else "each"))
    grads = [torch.autograd.grad((side - wanted).square().mean(), found) for side in sides]
    assert len(found) == 3 * LAYERS
    for got, by_hand in zip(*grads, strict=True):
        torch.testing.assert_close(got, by_hand, rtol=1e-9, atol=1e-13)


def test_nothing_of_a_pass_is_left_without_gradients() -> None:
    model = apply(exact("gpt2"), "dlcl")
    with torch.no_grad():
        streams("gpt2", model)
    assert model.transformer.h[0].unsmooth.shared.held == {}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("albert", {}, "called at every depth"),
        ("bert", {"norm": "pre"}, "Expected norm as one of"),
        ("bert", {"start": 1.0}, "start as one of average, last"),
    ],
)
def test_what_it_refuses(name: str, options: dict[str, Any], message: str) -> None:
    model = BY_NAME[name].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=message):
        apply(model, "dlcl", **options)
    before.check(model)


def test_dropped_norms_and_folding() -> None:
    model = apply(BY_NAME["gpt2"].model(), "skipinit")
    with pytest.raises(UnsmoothError, match='norm="none" works'):
        apply(model, "dlcl")
    apply(model, "dlcl", norm="none")
    with pytest.raises(UnsmoothError, match="does not"):
        unsmooth.fold(model)
