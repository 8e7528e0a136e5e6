"""What stands inside attention: remedies of its branch hold, and those that need its weights say what is there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.models.hand_blocks import HandBlock, Kind, hand_block, head_maps, stream
from unsmooth.errors import UnsmoothError
from unsmooth.models import value_projection

UNKNOWN = Kind(key_value=2, deal="turn", causal=True)
GATED = Kind(gated="each", heads=3, key_value=3)
LATENT = Kind(latent=True)


def model_of(kind: Kind) -> nn.Sequential:
    return nn.Sequential(hand_block(kind), hand_block(kind))


def run(model: nn.Module, x: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(stream() if x is None else x)
    return out


@pytest.mark.parametrize("kind", [UNKNOWN, GATED, LATENT, Kind(value_norm=True), Kind(heads_norm=True)])
@pytest.mark.parametrize(
    ("name", "neutral"), [("deescalate", {"tau": 0.0}), ("layerscale", {"start": 1.0}), ("rezero", None)]
)
def test_what_needs_the_branch_alone_holds(kind: Kind, name: str, neutral: dict[str, float] | None) -> None:
    model = model_of(kind)
    plain, weights = run(model), {key: one.clone() for key, one in model.state_dict().items()}
    if neutral is not None:
        torch.testing.assert_close(run(unsmooth.apply(model, name, blocks="*", **neutral)), plain)
        unsmooth.undo(model, blocks="*")
    assert (run(unsmooth.apply(model, name, blocks="*")) - plain).abs().max() > 1e-2
    unsmooth.undo(model, blocks="*")
    assert torch.equal(run(model), plain)
    assert all(torch.equal(one, weights[key]) for key, one in model.state_dict().items())


def test_the_mean_is_that_of_the_past_where_weights_are_unknown_and_attention_is_causal() -> None:
    model = unsmooth.apply(model_of(UNKNOWN), "deescalate", tau=0.5, blocks="*")
    x = stream()
    other = x.clone()
    other[:, -1] += 1.0
    assert torch.equal(run(model, x)[:, :-1], run(model, other)[:, :-1])


def test_a_branch_of_unknown_weights_folds() -> None:
    model = unsmooth.apply(model_of(UNKNOWN), "layerscale", start=0.5, blocks="*")
    scaled = run(model)
    torch.testing.assert_close(run(unsmooth.fold(model, blocks="*")), scaled)


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        (UNKNOWN, "sharpen", "query heads that read values in the order"),
        (UNKNOWN, "centred", "acts inside attention, whose weights are not known: query heads"),
        (UNKNOWN, "value_residual", "query heads that read values in the order"),
        (UNKNOWN, "attnscale", "query heads that read values in the order"),
        (GATED, "neutreno", "a gate is between its heads and their projection"),
        (Kind(value_norm=True), "value_residual", "its heads mix what a norm or a factor makes of the values"),
        (Kind(value_norm=True), "neutreno", "its heads mix what a norm or a factor makes of the values"),
        (LATENT, "sharpen", "a norm with weights, 'attn.narrow_norm', is between its value and its output weights"),
        (LATENT, "mimetic", "a norm with weights, 'attn.narrow_norm'"),
        (Kind(heads_norm=True), "smooth", "a norm with weights, 'attn.heads_norm'"),
        (Kind(gated="head"), "sharpen", "its heads are multiplied by a softplus, which may be past one"),
        (Kind(factor=1.5), "sharpen", "its values are multiplied by 1.5"),
    ],
)
def test_what_needs_more_says_what_is_there(kind: Kind, name: str, why: str) -> None:
    model = model_of(kind)
    before = {key: one.clone() for key, one in model.state_dict().items()}
    with pytest.raises(UnsmoothError, match=why):
        unsmooth.apply(model, name, blocks="*")
    assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("basis", ["gram", "schur", "orthogonal", "general"])
def test_a_sharpened_gated_layer_has_no_eigenvalue_above_zero_however_its_gate_stands(basis: str) -> None:
    """V diag(g) W_O has the eigenvalues of diag(g) W_O V, and W_O V is what the lever gives, or triangular with it."""
    model = unsmooth.apply(model_of(GATED), "sharpen", basis=basis, blocks="*")
    block = unsmooth.fold(model, blocks="*")[0]
    assert isinstance(block, HandBlock)
    for seed in range(4):
        gates = torch.rand(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        h = sum((w_v * gates[head]) @ w_o for head in range(3) for w_v, w_o in [head_maps(block, head)])
        found = torch.linalg.eigvals(h)
        # Where some are zero, and H is not normal, rounding in float32 moves those by its seventh root or so.
        assert found.real.max() < (2e-2 if basis == "schur" else 1e-5)
        assert found.real.min() > -1.0 - 1e-5
        assert found.real.min() < -1e-3


def test_the_gate_of_a_layer_with_remedies_is_read() -> None:
    model = unsmooth.apply(model_of(GATED), "layerscale", start=0.5, blocks="*")
    values = value_projection(model, 1, blocks="*")
    assert values.gate is not None
    plain = value_projection(unsmooth.undo(model, blocks="*"), 1, blocks="*")
    torch.testing.assert_close(values.summed(), 0.5 * plain.summed())
