from __future__ import annotations

import copy
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


class Decoder(nn.Module):
    """Torch's decoder blocks, which read another stack's tokens between attention and MLP."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(12, 3, 20, 0.0, batch_first=True, norm_first=norm_first) for _ in range(2)
        )
        draw = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
        self.double().eval()

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, memory)
        return x


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [True, False])
def test_cross_attention_has_a_gamma_of_its_own(norm_first: bool) -> None:
    draw = torch.Generator().manual_seed(5)
    x, memory = (torch.randn(2, n, 12, generator=draw, dtype=torch.double) for n in (5, 7))
    gammas = torch.randn(2, 3, 12, generator=draw, dtype=torch.double)
    model, wanted = Decoder(norm_first), x
    kept = copy.deepcopy(model)
    for layer, (own, mlp, cross) in zip(model.layers, gammas, strict=True):
        for gamma, norm, branch in (
            (own, layer.norm1, lambda x, layer=layer: layer.self_attn(x, x, x)[0]),
            (cross, layer.norm2, lambda x, layer=layer: layer.multihead_attn(x, memory, memory)[0]),
            (mlp, layer.norm3, lambda x, layer=layer: layer.linear2(layer.linear1(x).relu())),
        ):
            added = gamma * branch(norm(wanted) if norm_first else wanted)
            wanted = wanted + added if norm_first else norm(wanted + added)
    plain, crossed = model(x, memory), value_projection(model, 1, site="cross").summed()
    unsmooth.apply(model, "layerscale", start=1.0)
    assert torch.equal(model(x, memory), plain)
    for block, gamma in zip(model.layers, gammas, strict=True):
        block.unsmooth.layerscale.gamma.copy_(gamma)
    torch.testing.assert_close(model(x, memory), wanted)
    torch.testing.assert_close(value_projection(model, 1, site="cross").summed(), crossed * gammas[1, 2])
    torch.testing.assert_close(unsmooth.fold(model)(x, memory), wanted)
    untouched = copy.deepcopy(kept)
    unsmooth.undo(unsmooth.apply(kept, "layerscale"))
    assert torch.equal(kept(x, memory), untouched(x, memory))
