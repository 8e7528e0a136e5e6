from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import unsmooth
from tests.remedies.by_hand import POST, Edits, blocks_of, by_hand, exact, near, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection
from unsmooth.remedies import applied

NORMS = {
    "torch_pre": ("norm1", "norm2"),
    "gpt2": ("ln_1", "ln_2"),
    "neox_parallel": ("input_layernorm", "post_attention_layernorm"),
    "llama": ("input_layernorm", "post_attention_layernorm"),
    "vit": ("layernorm_before", "layernorm_after"),
}
MAKES: dict[str, Any] = {"flip": lambda w: -w, "negative": lambda w: -w.abs(), "positive": torch.Tensor.abs}


def mixed(name: str) -> Any:
    """The host with weights of both signs in its norms."""
    model = exact(name)
    generator = torch.Generator().manual_seed(2)
    for block in blocks_of(model):
        for path in NORMS[name]:
            weight = block.get_submodule(path).weight.data
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("sign", MAKES)
def test_weights_get_the_sign_and_nothing_else_changes(name: str, sign: str) -> None:
    plain = mixed(name)
    model = unsmooth.apply(copy.deepcopy(plain), "norm_signs", sign=sign, layers=[0, 2])
    for index in (0, 2):
        weight = blocks_of(plain)[index].get_submodule(NORMS[name][0]).weight.data
        weight.copy_(MAKES[sign](weight))
    near(name, streams(name, model)[1], by_hand(name, plain, Edits()))
    Snapshot.of(mixed(name)).check(unsmooth.undo(model), copied=True)


@pytest.mark.parametrize(("norm", "turned"), [("mlp", (1,)), ("both", (0, 1))])
def test_the_other_norm(norm: str, turned: tuple[int, ...]) -> None:
    plain = mixed("vit")
    model = unsmooth.apply(copy.deepcopy(plain), "norm_signs", norm=norm)
    for block in blocks_of(plain):
        for index in turned:
            block.get_submodule(NORMS["vit"][index]).weight.data.neg_()
    near("vit", streams("vit", model)[1], by_hand("vit", plain, Edits()))
    (done,) = applied(model)
    assert done.report[1] == {f"turned of {NORMS['vit'][index]}": 1.0 for index in turned}


def test_effective_eigenvalues_change_their_sign() -> None:
    """Diag(γ)H, from the weights that whoever explains a model sees."""

    def eigenvalues(model: nn.Module) -> torch.Tensor:
        values = value_projection(model, 1)
        found = torch.linalg.eigvals(values.norm.weight[:, None] * values.summed())
        return found[found.abs().sort().indices]

    plain, model = mixed("vit"), unsmooth.apply(mixed("vit"), "norm_signs")
    before, after = eigenvalues(plain), eigenvalues(model)
    order = [int((after + value).abs().argmin()) for value in before]
    assert sorted(order) == list(range(len(order)))
    torch.testing.assert_close(after[order], -before)


def test_what_was_trained_stays_and_turns_back() -> None:
    model = unsmooth.apply(mixed("gpt2"), "norm_signs")
    with torch.no_grad():
        for block in blocks_of(model):
            block.ln_1.weight.add_(0.5)
    wanted = [-block.ln_1.weight.detach().clone() for block in blocks_of(model)]
    unsmooth.undo(model)
    for block, weight in zip(blocks_of(model), wanted, strict=True):
        assert torch.equal(block.ln_1.weight, weight)


def test_checkpoints_of_both_kinds() -> None:
    other = mixed("vit")
    for block in blocks_of(other):
        block.layernorm_before.weight.data.mul_(-1.5)
    state = {key: value.clone() for key, value in other.state_dict().items()}
    model = unsmooth.apply(mixed("vit"), "norm_signs", sign="negative")
    model.load_state_dict(state, strict=True)
    assert all(torch.equal(state[key], value) for key, value in other.state_dict().items()), "the checkpoint changed"
    for block, was in zip(blocks_of(model), blocks_of(other), strict=True):
        assert torch.equal(block.layernorm_before.weight, -was.layernorm_before.weight.abs())
    again = unsmooth.apply(mixed("vit"), "norm_signs", sign="negative")
    again.load_state_dict(model.state_dict(), strict=True)
    Snapshot.of(other).check(unsmooth.undo(again), copied=True)


def test_folding_leaves_the_weights() -> None:
    model = unsmooth.apply(mixed("llama"), "norm_signs")
    wanted = streams("llama", model)[1]
    assert torch.equal(streams("llama", unsmooth.fold(model))[1], wanted)
    assert applied(model) == []


@pytest.mark.parametrize("name", POST)
def test_norms_after_the_addition_are_refused(name: str) -> None:
    refused(BY_NAME[name].model(), "multiply the stream itself")


def test_norms_that_are_gone_or_without_weights_are_refused() -> None:
    refused(unsmooth.apply(BY_NAME["vit"].model(), "rezero"), "has dropped its norms")
    model = BY_NAME["torch_pre"].model()
    model.layers[1].norm1 = nn.LayerNorm(32, elementwise_affine=False)
    refused(model, "norm 'norm1' has no weights")
    signed = unsmooth.apply(BY_NAME["vit"].model(), "norm_signs")
    with pytest.raises(UnsmoothError, match="norm_signs rests on the norms"):
        unsmooth.apply(signed, "rezero")


@pytest.mark.parametrize("options", [{"sign": "flipped"}, {"norm": "all"}])
def test_bad_options_are_refused(options: dict[str, str]) -> None:
    refused(BY_NAME["vit"].model(), "Expected (sign|norm) as one of", **options)


def refused(model: nn.Module, message: str, **options: str) -> None:
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.apply(model, "norm_signs", **options)
    before.check(model)
