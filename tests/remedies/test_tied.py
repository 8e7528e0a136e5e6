"""Weights that several blocks share: what writes to them for each of these blocks is refused, what does not works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import unsmooth
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError

GPT2, ALBERT = BY_NAME["gpt2"], BY_NAME["albert"]
BRANCH_ENDS, NORMS, ATTENTION = ("attn.c_proj", "mlp.c_proj"), ("ln_1", "ln_2"), ("attn.c_attn", "attn.c_proj")


def tied(*paths: str, layers: tuple[int, ...] = (1, 2)) -> Any:
    """GPT-2 whose blocks have the weights of the first at these paths, each in a module of its own."""
    model = GPT2.model()
    first, *rest = (model.transformer.h[layer] for layer in (0, *layers))
    for path in paths:
        for block in rest:
            block.get_submodule(path)._parameters.update(first.get_submodule(path)._parameters)
    return model


def outputs(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return GPT2.output(model, GPT2.call(GPT2.inputs()))


FOLDED = [
    ("residual_scaling", {}, BRANCH_ENDS),
    ("layerscale", {}, BRANCH_ENDS),
    ("rezero", {"norm": "keep", "start": 0.5}, BRANCH_ENDS),
    ("layernorm_scaling", {}, NORMS),
    ("sigma_reparam", {}, ATTENTION),
]


@pytest.mark.parametrize(("name", "options", "paths"), FOLDED)
def test_what_would_be_folded_once_for_each_block_is_refused(
    name: str, options: dict[str, Any], paths: tuple[str, ...]
) -> None:
    model = unsmooth.apply(tied(*paths), name, **options)
    before, wanted = Snapshot.of(model), outputs(model)
    with pytest.raises(UnsmoothError, match=f"{name} in block 'transformer.h.0', whose '{paths[0]}.*also a weight of"):
        unsmooth.fold(model)
    before.check(model)
    assert torch.equal(outputs(model), wanted)
    unsmooth.undo(model)


@pytest.mark.parametrize(("name", "options", "paths"), FOLDED)
def test_other_weights_may_be_tied(name: str, options: dict[str, Any], paths: tuple[str, ...]) -> None:
    model = unsmooth.apply(tied(*(NORMS if paths != NORMS else BRANCH_ENDS)), name, **options)
    wanted = outputs(model)
    torch.testing.assert_close(outputs(unsmooth.fold(model)), wanted, atol=1e-4, rtol=1e-4)


def test_a_block_without_the_remedy_keeps_its_weights() -> None:
    """Folded into the first block alone, the factor would be in the second one too."""
    model = unsmooth.apply(tied(*BRANCH_ENDS), "residual_scaling", layers=0)
    with pytest.raises(UnsmoothError, match="also a weight of another module"):
        unsmooth.fold(model)


def test_a_module_of_two_blocks_counts_as_two() -> None:
    model = GPT2.model()
    model.transformer.h[1].ln_1 = model.transformer.h[0].ln_1
    with pytest.raises(UnsmoothError, match=r"it writes 'ln_1.weight', which is also a weight of another module"):
        unsmooth.apply(model, "norm_signs")


@pytest.mark.parametrize(
    ("name", "options", "path"),
    [
        ("sigma_reparam", {}, "linear1"),
        ("rezero", {}, "norm1"),
        ("skipinit", {}, "norm2"),
        ("deepnorm", {"init": "keep"}, "norm1"),
        ("b2t", {"norm": "drop"}, "norm2"),
    ],
)
def test_what_would_be_changed_for_another_block_too_is_refused(name: str, options: dict[str, Any], path: str) -> None:
    model = BY_NAME["torch_post"].model()
    setattr(model.layers[1], path, model.layers[0].get_submodule(path))
    before = Snapshot.of(model)
    for layers in (None, [1]):
        with pytest.raises(UnsmoothError, match=f"it changes '{path}', which is also a part of another block"):
            unsmooth.apply(model, name, layers=layers, **options)
        before.check(model)
    unsmooth.undo(unsmooth.apply(model, name, layers=2, **options))
    before.check(model)


@pytest.mark.parametrize(
    ("name", "options", "paths"),
    [
        ("norm_signs", {}, NORMS),
        ("norm_signs", {"norm": "mlp"}, ("ln_2",)),
        ("mimetic", {}, ATTENTION),
        ("spa", {}, ATTENTION),
        ("sharpen", {}, ("attn.c_attn",)),
        ("sharpen", {}, ("attn.c_proj",)),
        ("smooth", {}, ATTENTION),
    ],
)
def test_what_would_be_written_once_for_each_block_is_refused(
    name: str, options: dict[str, Any], paths: tuple[str, ...]
) -> None:
    model = tied(*paths)
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=f"'transformer.h.0': it writes '{paths[0]}.weight', which is also"):
        unsmooth.apply(model, name, **options)
    before.check(model)
    with pytest.raises(UnsmoothError, match="also a weight of another module"):
        unsmooth.apply(model, name, layers=2, **options)
    before.check(model)


@pytest.mark.parametrize(("name", "options"), [("deepnorm", {}), ("b2t", {"variant": "official"})])
def test_the_same_in_post_norm_blocks(name: str, options: dict[str, Any]) -> None:
    model = BY_NAME["torch_post"].model()
    model.layers[1].linear1.weight = model.layers[0].linear1.weight
    with pytest.raises(UnsmoothError, match=r"it writes 'linear1.weight', which is also a weight of another module"):
        unsmooth.apply(model, name, **options)
    kept = {"init": "keep"} if name == "deepnorm" else {"variant": "paper"}
    assert unsmooth.remedies.applied(unsmooth.apply(model, name, **kept))


def test_blocks_that_share_nothing_are_written_to() -> None:
    """Two of three are tied, and the remedy is for the third."""
    model = tied(*NORMS, layers=(1,))
    before = model.transformer.h[2].ln_1.weight.detach().clone()
    unsmooth.apply(model, "norm_signs", layers=2)
    assert torch.equal(model.transformer.h[2].ln_1.weight, -before)


@pytest.mark.parametrize("name", ["residual_scaling", "sharpen"])
def test_a_block_that_is_called_again_and_again_is_one(name: str) -> None:
    model = unsmooth.apply(ALBERT.model(), name)
    call = ALBERT.call(ALBERT.inputs())
    with torch.no_grad():
        wanted = ALBERT.output(model, call)
        found = ALBERT.output(unsmooth.fold(model), call)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_so_is_one_that_a_list_holds_twice() -> None:
    model = GPT2.model()
    blocks = model.transformer.h
    model.transformer.h = nn.ModuleList([blocks[0], blocks[0], blocks[1]])
    before = blocks[0].ln_1.weight.detach().clone()
    unsmooth.apply(model, "norm_signs")
    assert torch.equal(blocks[0].ln_1.weight, -before)
