from __future__ import annotations

import pytest
import torch
from torch import Tensor

import unsmooth
from tests.remedies.by_hand import HANDS, POST, PRE, blocks_of, exact, near, same, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection

ABLE = (*PRE, "neox_parallel")


def scaled_by_hand(name: str, scales: tuple[float, ...]) -> Tensor:
    """Blocks written out, with what each of their norms gives multiplied by a number."""
    plain = exact(name)
    x = streams(name, plain)[0]
    for block, scale in zip(blocks_of(plain), scales, strict=True):
        hand = HANDS[type(block).__name__](block)
        one, two = hand.norms
        middle = x + hand.attend(scale * one(x), same)
        x = middle + hand.mlp(scale * two(x if hand.style == "parallel" else middle))
    return x


@pytest.mark.parametrize("name", ABLE)
def test_norms_are_scaled_by_depth_and_fold(name: str) -> None:
    wanted, model = scaled_by_hand(name, (1.0, 0.7071067811865476, 0.5773502691896258)), exact(name)
    before = Snapshot.of(model)
    near(name, streams(name, unsmooth.apply(model, "layernorm_scaling"))[1], wanted)
    before.check(unsmooth.undo(model))
    model = unsmooth.fold(unsmooth.apply(model, "layernorm_scaling"))
    near(name, streams(name, model)[1], wanted)
    before.check_form(model)


def test_some_layers_keep_their_place() -> None:
    model = unsmooth.apply(exact("gpt2"), "layernorm_scaling", layers=[2])
    near("gpt2", streams("gpt2", model)[1], scaled_by_hand("gpt2", (1.0, 1.0, 3**-0.5)))
    model = unsmooth.apply(exact("gpt2"), "layernorm_scaling", scale=0.3)
    near("gpt2", streams("gpt2", model)[1], scaled_by_hand("gpt2", (0.3, 0.3, 0.3)))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_whoever_explains_sees_the_norm_scaled(name: str) -> None:
    kept = unsmooth.apply(exact(name), "layernorm_scaling")
    found = value_projection(kept, 2)
    folded = value_projection(unsmooth.fold(kept), 2)
    torch.testing.assert_close(found.norm.weight, folded.norm.weight)
    if found.norm.bias is not None:
        torch.testing.assert_close(found.norm.bias, folded.norm.bias)
    assert found.unseen == ()


@pytest.mark.parametrize("name", [*POST, "own_encoder_peri"])
def test_other_places_of_the_norms_are_refused(name: str) -> None:
    model = BY_NAME[name].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=r"after the additions|end in norms"):
        unsmooth.apply(model, "layernorm_scaling")
    before.check(model)


def test_norms_that_are_gone() -> None:
    model = unsmooth.apply(BY_NAME["gpt2"].model(), "skipinit")
    with pytest.raises(UnsmoothError, match="has dropped its norms"):
        unsmooth.apply(model, "layernorm_scaling")
    model = unsmooth.apply(BY_NAME["gpt2"].model(), "layernorm_scaling")
    with pytest.raises(UnsmoothError, match="layernorm_scaling rests on the norms"):
        unsmooth.apply(model, "skipinit")


def test_norms_without_weights_do_not_fold() -> None:
    layer = torch.nn.TransformerEncoderLayer(4, 1, 4, batch_first=True, norm_first=True)
    layer.norm1 = torch.nn.LayerNorm(4, elementwise_affine=False)
    model = unsmooth.apply(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), "layernorm_scaling")
    with pytest.raises(UnsmoothError, match="its norms have no weights"):
        unsmooth.fold(model)
