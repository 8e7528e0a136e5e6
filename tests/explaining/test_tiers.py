"""Tiers draw what they say they draw, know what they say they know, and do to it what the block does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import null_space, orthogonal_procrustes
from torch import Tensor, nn

from tests.explaining.seeing import (
    BY_NAME,
    CASE_NAMES,
    CASES,
    ROUNDING,
    Matrix,
    encoder,
    set_values,
    similarity,
    streams,
    tokens_of,
    view,
    view_of,
)
from tests.models.entry import Entry, Padding
from unsmooth import explain
from unsmooth.explaining import TIERS
from unsmooth.explaining.jacobian import Split
from unsmooth.explaining.observe import BatchView
from unsmooth.explaining.tiers import (
    attended_by,
    corrected_tokens,
    drawn_tokens,
    foretell,
    logit_similarity,
    nearest_turned,
    random_rotation,
    randomly_turned,
)
from unsmooth.models import ValueProjection, find_anatomy
from unsmooth.models.value_projection import values_of_block

WITH_ATTENTION = [
    (entry, padding)
    for entry, padding in CASES
    if entry.name in ROUNDING or entry.name in ("bert-tiny", "gpt2-tiny", "gpt_neox-parallel", "albert-shared")
] + [(BY_NAME[name], "right") for name in BY_NAME if name.startswith("torch_encoder")]


def drawing(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logit(x_ND: Matrix | Tensor) -> float:
    """From t_sim by its definition."""
    share = similarity(x_ND)
    return math.log(share / (1.0 - share))


def known(model: nn.Module, seen: BatchView) -> list[tuple[ValueProjection, Tensor] | None]:
    """Value weights and maps of every layer."""
    anatomy = find_anatomy(model)
    paths = list(anatomy.blocks)
    found = []
    for layer in seen.layers:
        assert layer.maps_BHNN is not None
        found.append((values_of_block(anatomy, paths.index(layer.path)), layer.maps_BHNN))
    return found


def told(tier: str, model: nn.Module, seen: BatchView, seed: int = 0) -> list[list[float]]:
    """What a tier says of every layer and sequence."""
    with torch.no_grad():
        found = list(foretell(TIERS[tier], seen.layers, seen.real_BN, known(model, seen), drawing(seed)))
    assert all(change is not None for change in found)
    return [change.tolist() for change in found if change is not None]


def measured(seen: BatchView) -> list[list[float]]:
    split = Split(seen.real_BN)
    return [
        (logit_similarity(split, one.sites["output"]) - logit_similarity(split, one.sites["input"])).tolist()
        for one in seen.layers
    ]


def test_logit_is_that_of_the_similarity_and_stays_finite_near_collapse() -> None:
    x, real_BN = streams(), torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] + [True] * 5])
    found = logit_similarity(Split(real_BN), x).tolist()
    assert found == pytest.approx([logit(one) for one in tokens_of(x, real_BN)], rel=1e-9)
    near = torch.ones(1, 2, 1, dtype=torch.float64) + torch.tensor([[[1e-12], [-1e-12]]], dtype=torch.float64)
    assert logit_similarity(Split(torch.ones(1, 2, dtype=torch.bool)), near).item() == pytest.approx(
        -2 * math.log(1e-12), rel=1e-4
    )


def test_a_random_rotation_is_orthogonal_and_leaves_the_mean_alone() -> None:
    rotation = random_rotation(7, drawing())
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(7, dtype=torch.float64))
    torch.testing.assert_close(rotation.sum(dim=0), torch.ones(7, dtype=torch.float64))
    assert not torch.allclose(rotation, random_rotation(7, drawing(1)))


def test_random_rotations_are_uniform() -> None:
    """The mean over many is the projection onto the mean, and the mean square of an entry of the rest is 1/(n − 1)."""
    generator = drawing()
    many = torch.stack([random_rotation(4, generator) for _ in range(4000)])
    torch.testing.assert_close(many.mean(dim=0), torch.full((4, 4), 0.25, dtype=torch.float64), atol=0.03, rtol=0)
    basis = torch.from_numpy(null_space(np.ones((1, 4))))
    rest = basis.T @ many @ basis
    torch.testing.assert_close(rest.square().mean(dim=0), torch.full((3, 3), 1 / 3).double(), atol=0.02, rtol=0)


def statistics(x_ND: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Scales of tokens, mean and covariance of what they are less their scale."""
    scale = np.sqrt(np.square(x_ND).mean(axis=1, keepdims=True))
    direction = x_ND / scale
    return scale, direction.mean(axis=0), np.cov(direction.T, bias=True)


def test_drawn_tokens_have_these_statistics_and_no_other() -> None:
    scale = torch.tensor([1.0, 100.0, 1.0, 2.0, 0.5, 1.0]).double()[:, None]
    x, real_BN = streams().double() * scale, torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] + [True] * 5])
    drawn = drawn_tokens(x, real_BN, drawing())
    assert torch.equal(drawn[~real_BN], x[~real_BN])
    for before, after in zip(tokens_of(x, real_BN), tokens_of(drawn, real_BN), strict=True):
        scales, mean, covariance = statistics(before)
        direction = after / scales
        np.testing.assert_allclose(direction.mean(axis=0), mean, atol=1e-12)
        np.testing.assert_allclose(np.cov(direction.T, bias=True), covariance, atol=1e-12)
        assert not np.allclose(before, after, atol=0.1)


def test_corrected_tokens_have_these_statistics_and_are_the_nearest_that_do() -> None:
    x, carried = streams().double(), streams(seed=1).double()
    real_BN = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] + [True] * 5])
    corrected = corrected_tokens(carried, x, real_BN)
    assert torch.equal(corrected[~real_BN], x[~real_BN])
    together = (tokens_of(one, real_BN) for one in (x, carried, corrected))
    for before, other, after in zip(*together, strict=True):
        scales, mean, covariance = statistics(before)
        direction = after / scales
        np.testing.assert_allclose(direction.mean(axis=0), mean, atol=1e-12)
        np.testing.assert_allclose(np.cov(direction.T, bias=True), covariance, atol=1e-12)
        # Within what differs between tokens, the nearest orthogonal map is the one scipy finds.
        basis = null_space(np.ones((1, len(before))))
        rest, goal = basis.T @ (before / scales), basis.T @ (other / np.sqrt(np.square(other).mean(1, keepdims=True)))
        best, _ = orthogonal_procrustes(rest.T, goal.T)
        wanted = np.linalg.norm(goal.T - rest.T @ best)
        assert np.linalg.norm(goal - basis.T @ direction) == pytest.approx(wanted, rel=1e-9)


def test_what_is_corrected_to_its_own_statistics_stays() -> None:
    x, real_BN = streams().double(), torch.ones(3, 6, dtype=torch.bool)
    torch.testing.assert_close(corrected_tokens(x, x, real_BN), x)


@pytest.mark.parametrize(
    ("entry", "padding"), WITH_ATTENTION, ids=[f"{entry.name}-{padding}" for entry, padding in WITH_ATTENTION]
)
def test_a_block_attended_by_its_own_maps_is_the_block(entry: Entry, padding: Padding) -> None:
    """Grouped heads, causal masks, RMS and output norms, pre-, post-norm and parallel blocks, either padding."""
    model, seen = entry.model().double(), view_of(entry, padding)
    for layer, pair in zip(seen.layers, known(model, seen), strict=True):
        assert pair is not None
        with torch.no_grad():
            found = attended_by(layer, *pair, layer.sites["input"])
        wanted = layer.sites["output"]
        tolerance = 1e-4 if entry.name in ROUNDING else 1e-5  # weights are read in float32 where a host says so
        torch.testing.assert_close(found[seen.real_BN], wanted[seen.real_BN], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("entry", "padding"), CASES, ids=CASE_NAMES)
def test_the_block_itself_foretells_what_it_does(entry: Entry, padding: Padding) -> None:
    seen = view_of(entry, padding)
    none = [None] * len(seen.layers)
    with torch.no_grad():
        found = list(foretell(TIERS["T4"], seen.layers, seen.real_BN, none, drawing()))
    for change, wanted in zip(found, measured(seen), strict=True):
        assert change is not None
        assert change.tolist() == pytest.approx(wanted, abs=1e-4)


def layer_norm(x: Matrix, norm: nn.LayerNorm) -> Matrix:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + norm.eps)
    found: Matrix = scaled * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    return found


def block_by_hand(block: nn.TransformerEncoderLayer, x: Matrix, maps: Matrix) -> Matrix:
    """One torch encoder layer in numpy, its heads attending by `maps` (heads, n, n)."""
    parts = {name: value.detach().numpy() for name, value in block.named_parameters()}
    heads, dim = len(maps), x.shape[1]

    def attention(read: Matrix) -> Matrix:
        values = read @ parts["self_attn.in_proj_weight"][2 * dim :].T + parts["self_attn.in_proj_bias"][2 * dim :]
        mixed = [maps[head] @ each for head, each in enumerate(np.split(values, heads, axis=1))]
        out: Matrix = np.concatenate(mixed, axis=1) @ parts["self_attn.out_proj.weight"].T
        return out + parts["self_attn.out_proj.bias"]

    def mlp(read: Matrix) -> Matrix:
        hidden = np.maximum(read @ parts["linear1.weight"].T + parts["linear1.bias"], 0.0)
        out: Matrix = hidden @ parts["linear2.weight"].T
        return out + parts["linear2.bias"]

    if block.norm_first:
        x = x + attention(layer_norm(x, block.norm1))
        return x + mlp(layer_norm(x, block.norm2))
    x = layer_norm(x + attention(x), block.norm1)
    return layer_norm(x + mlp(x), block.norm2)


@pytest.mark.parametrize("norm_first", [True, False])
def test_statistics_and_maps_by_an_explicit_construction(norm_first: bool) -> None:
    """T3 of both layers, sequence by sequence, from numpy alone but for the rotation that was drawn."""
    model = encoder(norm_first=norm_first).double()
    with torch.no_grad():
        for layer in model.layers:
            layer.norm1.weight.copy_(torch.linspace(-1.0, 2.0, 8))
    seen = view(model, streams().double(), None)
    found, generator = told("T3", model, seen), drawing()
    for sequence in range(3):
        scale, mean, _ = statistics(seen.layers[0].sites["input"][sequence].numpy())
        rest = seen.layers[0].sites["input"][sequence].numpy() / scale - mean
        carried = scale * (mean + random_rotation(6, generator).numpy() @ rest)
        for number, (layer, block) in enumerate(zip(seen.layers, model.layers, strict=True)):
            scale, mean, _ = statistics(layer.sites["input"][sequence].numpy())
            rest = layer.sites["input"][sequence].numpy() / scale - mean
            # The nearest orthogonal map, in a basis of what differs.
            basis = null_space(np.ones((1, 6)))
            direction = carried / np.sqrt(np.square(carried).mean(axis=1, keepdims=True))
            best, _ = orthogonal_procrustes((basis.T @ rest).T, (basis.T @ direction).T)
            rotation = basis @ best.T @ basis.T
            given = scale * (mean + rotation @ rest)
            assert layer.maps_BHNN is not None
            carried = block_by_hand(block, given, layer.maps_BHNN[sequence].numpy())
            assert found[number][sequence] == pytest.approx(logit(carried) - logit(given), abs=1e-6)


class Averaging(nn.Module):
    """X ← X + ΠXH: what it does to equal tokens and to differences is known in closed form."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        drawn: Tensor = torch.randn(8, 8, generator=drawing(seed), dtype=torch.float64)
        self.h = nn.Parameter(0.5 * drawn)

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean(dim=1, keepdim=True) @ self.h


def test_closure_and_statistics_in_closed_form() -> None:
    """The mean goes to x̄(I + H) and the rest stays, so both tiers say 2 log ‖x̄(I + H)‖/‖x̄‖, whatever is drawn."""
    model = nn.Sequential(Averaging(1), Averaging(2))
    x = streams().double()
    x = x / x.square().mean(dim=-1, keepdim=True).sqrt() + 0.1  # nearly of one scale, so that it can be drawn
    x = x / x.square().mean(dim=-1, keepdim=True).sqrt()
    found = explain(model, x, blocks="*", progress=False, jacobian=False)
    means = x.mean(dim=1).numpy()
    for layer, block in zip(found.layers, model, strict=True):
        after = means @ (np.eye(8) + block.get_parameter("h").detach().numpy())
        wanted = float(np.mean(2 * np.log(np.linalg.norm(after, axis=1) / np.linalg.norm(means, axis=1))))
        assert layer.logit_change == pytest.approx(wanted, abs=1e-9)
        assert layer.predicted["T1"] == pytest.approx(wanted, abs=1e-9)
        if layer.layer == 1:
            assert layer.predicted["T2"] == pytest.approx(wanted, abs=1e-9)
        assert abs(layer.predicted["T0"] - wanted) > 1e-3
        means = after
    assert "T3" not in found.layers[0].predicted  # nobody knows the maps of such a block


@pytest.mark.parametrize("tier", ["T0", "T1", "T2", "T3"])
def test_no_tier_sees_the_output(tier: str) -> None:
    model = encoder(layers=1, norm_first=False)
    plain, blinded = (view(model, streams(), None) for _ in range(2))
    for site in ("output", "mid", "mlp", "attention"):
        blinded.layers[0].sites[site].fill_(float("nan"))
    assert told(tier, model, blinded) == told(tier, model, plain)


def test_weights_alone_see_nothing_of_the_data() -> None:
    model = encoder()
    one, other = (view(model, streams(seed=seed), None) for seed in (0, 1))
    assert told("T0", model, one) == told("T0", model, other)
    assert told("T1", model, one) != told("T1", model, other)


def test_the_closure_sees_the_embedding_alone() -> None:
    """Whatever the streams of later layers are."""
    model = encoder()
    plain, other = (view(model, streams(), None) for _ in range(2))
    other.layers[1].sites["input"] = torch.randn_like(other.layers[1].sites["input"])
    assert told("T1", model, other) == told("T1", model, plain)
    assert told("T2", model, other)[1] != told("T2", model, plain)[1]


# Rotary positions do not mind where a sequence starts; absolute ones count the padding on the left.
@pytest.mark.parametrize(("name", "padding"), [("bert-tiny", "right"), ("llama-grouped", "left")])
@pytest.mark.parametrize("tier", ["T0", "T1", "T2", "T3"])
def test_padding_is_not_there(tier: str, name: str, padding: Padding) -> None:
    entry = BY_NAME[name]
    model, seen = entry.model(), view_of(entry, padding, torch.float32)
    batch, generator = entry.batch(padding), drawing()
    found = told(tier, model, seen)
    for sequence, real_N in enumerate(seen.real_BN):
        alone = view(model, {key: value[sequence : sequence + 1, real_N] for key, value in batch.items()}, None)
        with torch.no_grad():
            wanted = list(foretell(TIERS[tier], alone.layers, alone.real_BN, known(model, alone), generator))
        assert [one[sequence] for one in found] == pytest.approx(
            [one.item() for one in wanted if one is not None], abs=1e-3
        )


def test_a_causal_model_attends_to_the_past_alone() -> None:
    """The tokens that are drawn are attended by the block's own mask: the first is what it makes of itself."""
    entry = BY_NAME["gpt2-tiny"]
    seen = view_of(entry, "none")
    layer, x = seen.layers[0], seen.layers[0].sites["input"]
    drawn = drawn_tokens(x, seen.real_BN, drawing())
    changed = drawn.clone()
    changed[:, 1:] = torch.randn_like(changed[:, 1:])
    with torch.no_grad():
        assert torch.equal(layer.rerun(drawn)[:, 0], layer.rerun(changed)[:, 0])


def test_explain_foretells_alike_whatever_the_batches_are() -> None:
    model = set_values(encoder(), 0.5)
    whole, single = (explain(model, streams(), batch_size=size, progress=False, jacobian=False) for size in (3, 1))
    for one, other in zip(whole.layers, single.layers, strict=True):
        assert dict(one.predicted) == pytest.approx(dict(other.predicted), abs=1e-5)
        assert set(one.predicted) == set(TIERS)
    for layer in whole.layers:
        assert layer.predicted["T4"] == pytest.approx(layer.logit_change, abs=1e-5)


def test_many_tokens_are_turned_without_a_square_matrix() -> None:
    rest, carried = (torch.randn(1030, 3, generator=drawing(seed), dtype=torch.float64) for seed in (0, 1))
    rest, carried = rest - rest.mean(dim=0), carried - carried.mean(dim=0)
    left, _, right = torch.linalg.svd(carried @ rest.T + 1.0)
    torch.testing.assert_close(nearest_turned(rest, carried), left @ right @ rest)
    turned = randomly_turned(rest, drawing())
    torch.testing.assert_close(turned.T @ turned, rest.T @ rest)
    torch.testing.assert_close(turned.sum(dim=0), torch.zeros(3, dtype=torch.float64))
    assert not torch.allclose(turned, randomly_turned(rest, drawing(1)))
