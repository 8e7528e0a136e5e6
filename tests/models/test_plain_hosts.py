"""What is special about single hosts, against numbers worked out by hand in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import BloomConfig, BloomModel

import unsmooth
from tests.models.entry import BATCH, LAYERS, TOKENS, VOCAB, hf, real_tokens, texts
from tests.models.plain_entries import PLAIN, V3
from tests.models.rebuilding import watch_all
from unsmooth.models import find_anatomy

BY_NAME = {entry.name: entry for entry in PLAIN}
Numbers = NDArray[np.float64]


def exact(tensor: Tensor) -> Numbers:
    found: Numbers = tensor.detach().double().numpy()
    return found


def softmax(scores: Numbers) -> Numbers:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Numbers = weights / weights.sum(axis=-1, keepdims=True)
    return found


def test_experts_are_the_mlp_of_mixtral() -> None:
    model = BY_NAME["mixtral-experts"].model()
    seen = watch_all(model, texts("right"))
    for layer, block in enumerate(model.layers, start=1):
        read = exact(block.post_attention_layernorm(seen.sites[layer, "mid"]))
        chance = softmax(read @ exact(block.mlp.gate.weight).T)
        gate_up, down = exact(block.mlp.experts.gate_up_proj), exact(block.mlp.experts.down_proj)
        wanted = np.zeros_like(read)
        for place in np.ndindex(BATCH, TOKENS):
            best = np.argsort(chance[place])[-2:]
            for expert in best:
                gate, up = np.split(gate_up[expert] @ read[place], 2)
                share = chance[place][expert] / chance[place][best].sum()
                wanted[place] += share * (down[expert] @ (gate / (1 + np.exp(-gate)) * up))
        found = exact(seen.sites[layer, "mlp"])
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["mistral-window", "mixtral-experts"])
def test_window_of_the_past(name: str) -> None:
    seen = watch_all(BY_NAME[name].model(), texts("none"))
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    inside = (distance >= 0) & (distance < 3)
    for layer in range(1, LAYERS + 1):
        assert bool((seen.maps[layer][..., ~inside] == 0).all())
        assert bool((seen.maps[layer][..., inside] > 0).all())


def test_convolution_between_the_first_blocks_of_deberta() -> None:
    torch.manual_seed(0)
    model: Any = hf("DebertaV2", relative_attention=True, conv_kernel_size=3, **V3)().eval()
    batch, handed_on = texts("right"), []
    find_anatomy(model)  # which runs the model once
    model.encoder.conv.register_forward_hook(lambda module, args, output: handed_on.append(output))
    seen = watch_all(model, batch)
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states
    real = real_tokens("right")
    # The model calls the stream after the convolution its first hidden state; it is what the second block reads.
    assert torch.equal(seen.sites[2, "normed"], handed_on[0])
    assert torch.equal(hidden[1], handed_on[0])
    assert (seen.sites[1, "residual"] - hidden[1])[real].abs().mean() > 0.05
    block = model.encoder.layer[0]
    mid, mlp = seen.sites[1, "mid"], seen.sites[1, "mlp"]
    torch.testing.assert_close(seen.sites[1, "residual"], block.output.LayerNorm(mid + mlp).detach())


def test_alibi_of_bloom_by_hand() -> None:
    heads, dim, width = 6, 24, 4
    torch.manual_seed(0)
    model = BloomModel(BloomConfig(vocab_size=VOCAB, hidden_size=dim, n_layer=1, n_head=heads)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    seen = watch_all(model, texts("right"))
    fused = exact(model.h[0].self_attention.query_key_value(seen.sites[1, "normed"]))
    query, key, _ = fused.reshape(BATCH, TOKENS, heads, 3, width).transpose(3, 0, 2, 1, 4)
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(width)
    # Six heads: the slopes of four, 1/4 … 1/256, and of eight every other one (Press et al. 2022, arXiv 2108.12409).
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
    distance = np.arange(TOKENS)[:, None] - np.arange(TOKENS)
    scores = scores - slopes[:, None, None] * distance
    visible = (distance >= 0) & real_tokens("right").numpy()[:, None, None]
    wanted = softmax(np.where(visible, scores, -1e300))
    for row in range(BATCH):
        count = int(real_tokens("right")[row].sum())
        np.testing.assert_allclose(exact(seen.maps[1][row, :, :count]), wanted[row, :, :count], atol=1e-5)


@pytest.mark.parametrize("name", ["dinov2-tiny", "dinov2-registers"])
def test_registers_are_special_tokens(name: str) -> None:
    entry = BY_NAME[name]
    model, pixels = entry.model(), entry.batch("none")
    content = unsmooth.scan(model, pixels, metrics=["mean_cosine"], progress=False)
    everything = unsmooth.scan(model, pixels, metrics=["mean_cosine"], tokens="all", progress=False)
    assert {row.tokens for row in content.rows} == {BATCH * 4}
    assert {row.tokens for row in everything.rows} == {BATCH * (4 + entry.prefix_tokens)}
    vectors = exact(watch_all(model, pixels).sites[LAYERS, "residual"])[:, entry.prefix_tokens :]
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    cosines = unit @ unit.swapaxes(-1, -2)
    wanted = ((cosines.sum(axis=(1, 2)) - 4) / 12).mean()
    assert content.curve("mean_cosine")[-1].mean == pytest.approx(wanted, abs=1e-5)


def test_class_token_alone_where_there_are_no_registers() -> None:
    model = hf("Dinov2WithRegisters", image_size=8, patch_size=4, num_register_tokens=0)()
    assert find_anatomy(model).host.prefix_tokens(model) == 1
