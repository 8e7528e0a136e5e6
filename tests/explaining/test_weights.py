"""Norms folded into weights do to a token what the layer's own norm does, at that token's σ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.explaining.seeing import BY_NAME, encoder, streams, view_of
from tests.models.entry import modules_at
from tests.models.hand_blocks import Kind, by_hand, halves, hand_block, head_weights, layer_norm, stream
from unsmooth.explaining.weights import Weights, branch_scale, fold, read_weights, stream_scale
from unsmooth.models import Norm, ValueProjection, find_anatomy, value_projection

PRE = ["gpt2-tiny", "llama-grouped", "torch_encoder-pre-batch-first", "timm_vit-stand-in-scaled", "gemma-gemma"]
POST = ["bert-tiny", "mpnet-tiny", "torch_encoder-post-tokens-first"]


def values_of(name: str) -> ValueProjection:
    return value_projection(BY_NAME[name].model(), 1)


@pytest.mark.parametrize("name", PRE)
def test_pre_norm_folds_into_value_weights(name: str) -> None:
    """What a head makes of a token: (norm(x) − β) W_V, read off the model's own norm, is x times the folded weight."""
    entry = BY_NAME[name]
    seen = view_of(entry, entry.paddings[0], torch.float32)
    values, layer = values_of(name), seen.layers[1]
    stream, normed = layer.sites["input"].flatten(0, 1), layer.sites["normed"].flatten(0, 1)
    if values.norm.bias is not None:
        normed = normed - values.norm.bias
    scales = stream_scale(values, stream)
    for token, read, scale in list(zip(stream, normed, scales.tolist(), strict=True))[:5]:
        folded = fold(values, scale)
        assert folded.right is None
        wanted = torch.einsum("d,hde->he", read.double(), values.w_v.double())
        found = torch.einsum("d,hde->he", token.double(), folded.w_v)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", POST)
def test_post_norm_becomes_a_factor_of_the_whole_update(name: str) -> None:
    """The site "mid" is norm(x + branch): at that token's σ it is (x + branch) R + β."""
    entry = BY_NAME[name]
    seen = view_of(entry, entry.paddings[0], torch.float32)
    values, layer = values_of(name), seen.layers[1]
    summed = (layer.sites["input"] + layer.sites["attention"]).flatten(0, 1)
    bias = values.norm.bias
    assert bias is not None
    for token, wanted, scale in zip(
        summed[:5], layer.sites["mid"].flatten(0, 1)[:5], stream_scale(values, summed).tolist(), strict=False
    ):
        folded = fold(values, scale)
        assert folded.right is not None
        torch.testing.assert_close(token.double() @ folded.right.double(), (wanted - bias).double(), rtol=0, atol=1e-4)


def test_a_whole_pre_norm_layer_of_equal_scale() -> None:
    """With one σ for all tokens the theory's X + Σ A_h X H_h is the layer's own attention half, to the last digit."""
    torch.manual_seed(0)
    block = encoder(norm_first=True).double().layers[0]
    with torch.no_grad():
        block.norm1.weight.copy_(torch.randn(8))  # signs of both kinds
        x = streams(1).double()
        x = x - x.mean(dim=-1, keepdim=True)
        x = 3.0 * x / x.square().mean(dim=-1, keepdim=True).sqrt() + torch.arange(6.0).view(1, 6, 1)
        scale = float((9.0 + block.norm1.eps) ** 0.5)
        values = value_projection(block, 0)
        branch, maps = block.self_attn(*(block.norm1(x),) * 3, need_weights=True, average_attn_weights=False)
    folded = fold(values, scale)
    products = [folded.w_v[h] @ folded.w_o[h] for h in range(2)]
    found = sum(maps[0, h] @ x[0] @ products[h] for h in range(2))
    drift = values.drift()
    assert drift is not None
    torch.testing.assert_close(found + drift, branch[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(folded.update(), np.eye(8) + sum(product.numpy() for product in products), atol=1e-12)


def test_update_and_averaged_rest_of_a_post_norm_layer() -> None:
    values = values_of("bert-tiny")
    folded = fold(values, 2.0)
    gamma = values.norm.weight
    assert gamma is not None
    right = (np.eye(16) - 1 / 16) @ np.diag(gamma.double().numpy()) / 2.0
    h = sum((values.w_v[i].double() @ values.w_o[i].double()).numpy() for i in range(2))
    np.testing.assert_allclose(folded.update(), (np.eye(16) + h) @ right, atol=1e-7)
    assert folded.averaged_rest() == pytest.approx(np.abs(np.linalg.eigvals(right)).max(), rel=1e-6)
    assert fold(values_of("gpt2-tiny"), 2.0).averaged_rest() == 1.0


def test_a_norm_on_the_branch_folds_into_output_weights() -> None:
    seen = view_of(BY_NAME["gemma-gemma2"], "none", torch.float32)
    values, layer = values_of("gemma-gemma2"), seen.layers[1]
    assert values.output_norm is not None
    assert layer.maps_BHNN is not None
    scale_BN = branch_scale(values, layer.maps_BHNN, layer.sites["normed"])
    assert scale_BN is not None
    folded = fold(values, 1.0, branch_scale=float(scale_BN[0, 3]))
    assert "norm on the branch" not in folded.ignored
    mixed = torch.einsum("hm,md,hde->he", layer.maps_BHNN[0, :, 3], layer.sites["normed"][0], values.w_v)
    found = torch.einsum("he,hed->d", mixed.double(), folded.w_o)
    torch.testing.assert_close(found.float(), layer.sites["attention"][0, 3], rtol=1e-4, atol=1e-4)
    assert "norm on the branch" in fold(values, 1.0).ignored


def test_a_gain_on_the_branch_is_folded_in() -> None:
    values = values_of("timm_vit-stand-in-scaled")
    assert values.gain is not None
    folded = fold(values, 1.0)
    torch.testing.assert_close(folded.w_o, values.w_o.double() * values.gain.double(), rtol=0, atol=1e-12)


def norm(kind: str, eps: float = 0.0) -> ValueProjection:
    eye = torch.eye(2)[None]
    return ValueProjection(eye, eye, torch.zeros(1, dtype=torch.long), None, None, "pre", Norm(kind, None, None, eps))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "wanted"), [("layer", [1.0, 4.0]), ("rms", [5.0**0.5, 5.0]), ("none", [1.0, 1.0])])
def test_scales_by_hand(kind: str, wanted: list[float]) -> None:
    """Tokens (1, 3) and (7, −1): spread 1 and 4, root mean square √5 and 5."""
    assert stream_scale(norm(kind), torch.tensor([[1.0, 3.0], [7.0, -1.0]])).tolist() == pytest.approx(wanted)


def test_scales_count_the_eps() -> None:
    assert stream_scale(norm("rms", 9.0), torch.tensor([[4.0, -4.0]])).tolist() == [5.0]
    assert stream_scale(norm("layer", 4.0), torch.zeros(1, 2)).tolist() == [2.0]
    assert branch_scale(norm("rms"), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 2)) is None


@pytest.mark.parametrize("kind", [Kind(latent=True), Kind("post", latent=True), Kind("output", latent=True)])
def test_a_norm_in_the_middle_of_value_weights_is_a_part_of_the_scale(kind: Kind) -> None:
    """With one head's values of one token: norm(norm(x) W_down) W_up less what biases add, by hand in float64."""
    block, x = hand_block(kind), stream()[0].double()
    with torch.no_grad():
        block.attn.down.bias.zero_()
        block.norm1.bias.zero_()
    values = value_projection(nn.Sequential(block), 0, blocks="*")
    w_down, _ = halves(block)
    w_up = head_weights(block, "v2")[0]
    read = layer_norm(x, block.norm1) if kind.style == "pre" else x
    wanted = (layer_norm(read @ w_down, block.attn.narrow_norm) - block.attn.narrow_norm.bias.detach().double()) @ w_up
    scales = stream_scale(values, x.float())
    for token, made, scale in zip(x, wanted, scales.tolist(), strict=True):
        folded = fold(values, scale)
        if kind.style == "post":
            assert "norm of values" in folded.ignored
        else:
            torch.testing.assert_close(token @ folded.w_v[2], made, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("style", ["pre", "sandwich"])
def test_a_norm_on_the_heads_is_a_part_of_the_scale_of_the_branch(style: str) -> None:
    block, x = hand_block(Kind(style, heads_norm=True)), stream()
    with torch.no_grad():
        for module in (block.attn.out, block.attn.heads_norm, *([block.out_norm1] if style == "sandwich" else [])):
            module.bias.zero_()
    values = value_projection(nn.Sequential(block), 0, blocks="*")
    sites, maps = by_hand(block, x), torch.rand(2, 4, 5, 5).softmax(dim=-1)
    heads = [sites["normed"] @ w_v + b_v for w_v, b_v in (head_weights(block, f"v{h}") for h in range(4))]
    mixed = torch.cat([maps[:, h].double() @ made for h, made in enumerate(heads)], dim=-1)
    wanted = layer_norm(mixed, block.attn.heads_norm) @ block.attn.out.weight.detach().double().T
    wanted = layer_norm(wanted, block.out_norm1) if style == "sandwich" else wanted
    scale_BN = branch_scale(values, maps, sites["normed"].float())
    assert scale_BN is not None
    found = fold(values, 1.0, branch_scale=float(scale_BN[1, 3]))
    torch.testing.assert_close(mixed[1, 3] @ found.w_o.flatten(0, 1), wanted[1, 3], rtol=1e-4, atol=1e-4)
    assert "norm on the branch" in fold(values, 1.0).ignored


def test_a_gate_is_named() -> None:
    values = value_projection(nn.Sequential(hand_block(Kind(gated="head"))), 0, blocks="*")
    assert "gate" in fold(values, 1.0).ignored


def test_every_block_is_read_and_what_cannot_be_is_named() -> None:
    entry = BY_NAME["bert-tiny"]
    model = entry.model()
    assert [one.problem for one in read_weights(find_anatomy(model))] == [None] * 3
    layers = modules_at(model, entry.blocks)
    with torch.no_grad():
        layers[("1",)].attention.self.value.weight[0, 0] = float("nan")  # type: ignore[union-attr]
        layers[("1",)].attention.self.value.weight[9, 0] = float("inf")  # type: ignore[union-attr]
    layers[("2",)].attention.self.value = nn.Bilinear(16, 16, 16)  # type: ignore[union-attr]
    found = read_weights(find_anatomy(model))
    assert found[0].problem is None
    assert found[1].problem is not None
    assert "head 0, 1" in found[1].problem
    assert found[2].values is None
    assert found[2].problem is not None
    assert "Bilinear" in found[2].problem


def test_unknown_blocks_have_no_weights_but_a_reason() -> None:
    found = read_weights(find_anatomy(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "*"))
    assert [one.path for one in found] == ["0", "1"]
    assert all(isinstance(one, Weights) and one.values is None and one.problem for one in found)


def test_weights_of_the_model_are_not_changed() -> None:
    model = BY_NAME["timm_vit-stand-in-scaled"].model()
    before: dict[str, Tensor] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for one in read_weights(find_anatomy(model)):
        assert one.values is not None
        fold(one.values, 0.3).w_v.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
