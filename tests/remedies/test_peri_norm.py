from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import unsmooth
from tests.remedies.by_hand import POST, PRE, Edits, blocks_of, by_hand, exact, gradients_near, near, streams
from tests.remedies.hosts import BY_NAME, DIM, LAYERS
from tests.remedies.snapshot import Snapshot
from unsmooth import networks
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection

ABLE = (*PRE, "neox_parallel")
EPS = {"vit": 1e-12, "llama": 1e-6}
RANDOM = torch.randn(LAYERS, 2, 2, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def normed(name: str, layer: int, branch: int) -> Any:
    weight, bias = RANDOM[layer, branch]

    def apply(x: Tensor) -> Tensor:
        centred = x if name == "llama" else x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + EPS.get(name, 1e-5)).sqrt() * weight
        return scaled if name == "llama" else scaled + bias

    return apply


def edits(name: str, layer: int) -> Edits:
    one, two = normed(name, layer, 0), normed(name, layer, 1)
    return Edits(first=lambda x, a: x + one(a), second=lambda x, m, bottom: x + two(m))


def with_weights(name: str, model: Any) -> Any:
    unsmooth.apply(model, "peri_norm")
    with torch.no_grad():
        for block, numbers in zip(blocks_of(model), RANDOM, strict=True):
            for norm, (weight, bias) in zip(block.unsmooth.peri_norm.children(), numbers, strict=True):
                assert norm.weight.tolist() == [1.0] * DIM
                norm.weight.copy_(weight)
                if name != "llama":
                    assert norm.bias.tolist() == [0.0] * DIM
                    norm.bias.copy_(bias)
    return model


@pytest.mark.parametrize("name", ABLE)
def test_branches_are_normalised(name: str) -> None:
    model = exact(name)
    before = Snapshot.of(model)
    near(
        name,
        streams(name, with_weights(name, model))[1],
        by_hand(name, exact(name), [edits(name, i) for i in range(3)]),
    )
    before.check(unsmooth.undo(model))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_gradients(name: str) -> None:
    gradients_near(name, with_weights(name, exact(name)), exact(name), [edits(name, i) for i in range(3)])


def test_it_is_what_our_peri_norm_networks_are_built_as() -> None:
    sizes = {"depth": 2, "dim": 32, "heads": 4, "hidden": 48, "vocabulary": 50, "length": 40}
    built = networks.build(networks.EncoderConfig(norm="peri", **sizes)).eval()
    pre = networks.build(networks.EncoderConfig(norm="pre", **sizes)).eval()
    weights = built.state_dict()
    pre.load_state_dict({key: value for key, value in weights.items() if "_out." not in key or "norm" not in key})
    ids = BY_NAME["own_encoder_post"].inputs()
    with torch.no_grad():
        torch.testing.assert_close(unsmooth.apply(pre, "peri_norm")(ids)[0], built(ids)[0])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_whoever_explains_sees_the_norm_after_h(name: str) -> None:
    plain, model = value_projection(exact(name), 1), exact(name)
    found = value_projection(with_weights(name, unsmooth.apply(model, "residual_scaling", scale=0.5)), 1)
    torch.testing.assert_close(found.summed(), 0.5 * plain.summed())
    x = torch.randn(3, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(found.output_norm.apply(x), normed(name, 1, 0)(x))


@pytest.mark.parametrize("name", [*POST, "own_encoder_peri"])
def test_other_places_of_the_norms_are_refused(name: str) -> None:
    model = BY_NAME[name].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=r"after the additions|end in norms already"):
        unsmooth.apply(model, "peri_norm")
    before.check(model)


def test_it_does_not_fold() -> None:
    model = unsmooth.apply(BY_NAME["gpt2"].model(), "peri_norm", start=2.0)
    assert model.transformer.h[0].unsmooth.peri_norm.mlp.weight.tolist() == [2.0] * DIM
    with pytest.raises(UnsmoothError, match="depends on the tokens"):
        unsmooth.fold(model)
