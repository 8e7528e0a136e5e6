from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import unsmooth
from tests.remedies.by_hand import EVERY, Edits, blocks_of, by_hand, exact, gradients_near, near, streams
from tests.remedies.hosts import BY_NAME, DIM, LAYERS
from tests.remedies.snapshot import Snapshot
from unsmooth.models.value_projection import value_projection

GAMMA = torch.randn(LAYERS, 2, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def scaled(gamma: torch.Tensor) -> Edits:
    return Edits(first=lambda x, a: x + a * gamma[0], second=lambda x, m, bottom: x + m * gamma[1])


def set_gamma(model: Any) -> Any:
    with torch.no_grad():
        for gamma, block in zip(GAMMA, blocks_of(model), strict=False):
            block.unsmooth.layerscale.gamma.copy_(gamma)
    return model


@pytest.mark.parametrize("name", EVERY)
def test_every_channel_of_both_branches_is_scaled_and_folds(name: str) -> None:
    edits = [scaled(GAMMA[0 if name == "albert" else layer]) for layer in range(LAYERS)]
    wanted, model = by_hand(name, exact(name), edits), exact(name)
    before = Snapshot.of(model)
    set_gamma(unsmooth.apply(model, "layerscale"))
    near(name, streams(name, model)[1], wanted)
    before.check(unsmooth.undo(model))
    model = unsmooth.fold(set_gamma(unsmooth.apply(model, "layerscale")))
    near(name, streams(name, model)[1], wanted)
    before.check_form(model)


def test_gradients() -> None:
    model = set_gamma(unsmooth.apply(exact("gpt2"), "layerscale"))
    gradients_near("gpt2", model, exact("gpt2"), [scaled(gamma) for gamma in GAMMA])


@pytest.mark.parametrize(("depth", "start"), [(2, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_it_starts_by_depth(depth: int, start: float) -> None:
    layer = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    unsmooth.apply(model, "layerscale")
    for layer in (model.layers[0], model.layers[-1]):
        assert layer.unsmooth.layerscale.gamma.tolist() == [[pytest.approx(start)] * 4] * 2


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_whoever_explains_sees_h_scaled_by_channel(name: str) -> None:
    plain = value_projection(exact(name), 1).summed()
    found = value_projection(set_gamma(unsmooth.apply(exact(name), "layerscale")), 1)
    torch.testing.assert_close(found.summed(), plain * GAMMA[1, 0])
    assert found.unseen == ()


def test_a_norm_at_the_end_of_a_branch_takes_it_when_folded() -> None:
    # In a peri-norm block what ends a branch is its norm: x + γ ⊙ LN(f).
    host = BY_NAME["own_encoder_peri"]
    model = unsmooth.apply(host.model(), "layerscale", start=0.5)
    norms = [block.norm_mlp_out.weight.clone() for block in model.modules() if hasattr(block, "norm_mlp_out")]
    unsmooth.fold(model)
    folded = [block.norm_mlp_out.weight for block in model.modules() if hasattr(block, "norm_mlp_out")]
    for was, now in zip(norms, folded, strict=True):
        assert torch.equal(now, 0.5 * was)
