"""Networks against blocks written out in numpy, and the ways in which they are called."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import unsmooth
from tests.networks import written_out as by_hand
from tests.networks.tiny import DECODER, ENCODER, VIT, inputs_of, outputs_of, shaken
from unsmooth import networks
from unsmooth.errors import UnsmoothError

CRAMMED = {"activation": "geglu", "qkv_bias": False, "mlp_bias": False, "norm_bias": False, "out_bias": False}


def streams_of(network: torch.nn.Module, inputs: Tensor, **call: Tensor) -> list[Tensor]:
    """What enters the first block and what each hands on, by torch's own hooks."""
    seen: list[Tensor] = []
    blocks = list(network.stack.blocks)
    handles = [blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))]
    handles += [block.register_forward_hook(lambda module, args, out: seen.append(out)) for block in blocks]
    with torch.no_grad():
        network(inputs, **call)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("style", networks.config.NORMS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "geglu"])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_are_what_is_written_out(style: str, activation: str, causal: bool) -> None:
    config = replace(ENCODER, norm=style, **({**CRAMMED} if activation == "geglu" else {"activation": activation}))
    if causal:
        config = replace(DECODER, norm=style, activation=activation, memory=0, positions="learned")
    network = shaken(networks.build(config)).double()
    ids, lengths = inputs_of(network), (6, 4, 2)
    mask = (torch.arange(6) < torch.tensor(lengths)[:, None]).long()
    stream = streams_of(network, ids, attention_mask=mask)
    for block, (before, after) in zip(network.stack.blocks, pairwise(stream), strict=True):
        for row, length in enumerate(lengths):
            seen = np.tri(length, dtype=bool) if causal else np.ones((length, length), dtype=bool)
            wanted = by_hand.run_block(by_hand.array(before[row, :length]), block, style, activation, seen)
            assert np.abs(by_hand.array(after[row, :length]) - wanted).max() < 1e-10


@pytest.mark.parametrize("tokens", [7, 3])
def test_relative_attention_is_the_papers(tokens: int) -> None:
    network = shaken(networks.build(DECODER)).double()
    block, ids = network.stack.blocks[0], inputs_of(network, rows=2, tokens=tokens)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(3, 2, 5, 16, generator=generator, dtype=torch.float64)
    filled = torch.tensor([5, 2])
    seen: list[tuple[Tensor, Tensor]] = []
    handle = block.attention.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    with torch.no_grad():
        network(ids, networks.Memory(states, filled))
    handle.remove()
    read, out = seen[0]
    biases = [by_hand.array(bias) for bias in (network.content_bias, network.position_bias)]
    for row in range(2):
        valid = np.arange(5) >= 5 - int(filled[row])
        past = by_hand.array(states[0, row])
        wanted = by_hand.relative_attention(by_hand.array(read[row]), past, block, *biases, valid)
        # Sinusoids are float32.
        assert np.abs(by_hand.array(out[row]) - wanted).max() < 1e-5


@pytest.mark.parametrize("style", networks.config.NORMS)
@pytest.mark.parametrize("pieces", [(4, 4, 4), (1,) * 12, (5, 7)])
def test_segments_with_memory_are_the_whole_text(style: str, pieces: tuple[int, ...]) -> None:
    """With a memory that holds all that came before, reading in pieces is reading at once."""
    network = shaken(networks.build(replace(DECODER, norm=style, memory=12)), 0.2)
    ids = inputs_of(network, tokens=12)
    for memory in (None, network.start_memory(3)):
        made = []
        for part in ids.split(list(pieces), dim=1):
            with torch.no_grad():
                logits, memory = network(part, memory)
            made.append(logits)
        assert (torch.cat(made, dim=1) - outputs_of(network, ids)).abs().max() < 2e-5
        assert memory.filled.tolist() == [12, 12, 12]


def test_a_short_memory_forgets_and_a_row_may_begin_anew() -> None:
    network = shaken(networks.build(DECODER), 0.2)
    first, other, second = (inputs_of(network, rows=2, tokens=6, seed=seed) for seed in range(3))
    with torch.no_grad():
        _, kept = network(first)
        _, elsewhere = network(other)
        states = torch.where(torch.tensor([True, False])[:, None, None], kept.states, elsewhere.states)
        begun = networks.Memory(states, torch.tensor([5, 0]))
        logits = network(second, begun)[0]
        assert torch.allclose(logits[0], network(second, kept)[0][0], atol=1e-6)
        assert torch.allclose(logits[1], network(second)[0][1], atol=1e-6)
    assert kept.states.shape == (3, 2, 5, 16)
    assert not torch.allclose(logits[0], outputs_of(network, second)[0], atol=1e-3)


def test_a_memory_has_no_gradient_and_the_segment_has() -> None:
    network = networks.build(DECODER)
    _, memory = network(inputs_of(network))
    assert not memory.states.requires_grad
    network(inputs_of(network, seed=1), memory)[0].square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


def test_no_logit_sees_the_future() -> None:
    for config in (DECODER, replace(DECODER, memory=0, positions="sinusoidal", norm="peri")):
        network = shaken(networks.build(config))
        ids = inputs_of(network)
        other = ids.clone()
        other[:, 3] = (other[:, 3] + 1) % 40
        before, after = outputs_of(network, ids), outputs_of(network, other)
        assert torch.equal(before[:, :3], after[:, :3])
        assert (before - after)[:, 3:].abs().amax(dim=(0, 2)).min() > 0


def test_embeddings_and_heads() -> None:
    network = shaken(networks.build(replace(ENCODER, positions="scaled_sinusoidal", embedding_scale=3.0))).double()
    ids = inputs_of(network)
    places, ranks = np.arange(6)[:, None], np.arange(16)
    angle = places * 10000.0 ** (-(ranks // 2 * 2) / 16)
    table = np.where(ranks % 2 == 0, np.sin(angle), np.cos(angle))
    tokens = 3.0 * by_hand.array(network.tokens.weight)[ids.numpy()]
    wanted = by_hand.norm(tokens + float(network.positions.scale) * table, network.embedding_norm)
    assert np.abs(by_hand.array(streams_of(network, ids)[0]) - wanted).max() < 1e-5
    hidden = by_hand.array(network.hidden(ids))
    logits = hidden @ by_hand.array(network.tokens.weight).T + by_hand.array(network.head_bias)
    assert np.abs(by_hand.array(outputs_of(network, ids)) - logits).max() < 1e-10
    at = torch.tensor([[0, 5], [2, 2], [4, 1]])
    everywhere = outputs_of(network, ids).gather(1, at[:, :, None].expand(-1, -1, 40))
    # Not to the bit: products of fewer rows are summed in another order on some processors.
    torch.testing.assert_close(outputs_of(network, ids, at=at), everywhere, rtol=1e-12, atol=1e-12)


def test_patches_are_a_convolution() -> None:
    network = shaken(networks.build(replace(VIT, pooling="mean"))).double()
    images = inputs_of(network)
    kernel = network.patches.weight.view(16, 3, 4, 4)
    convolved = torch.nn.functional.conv2d(images, kernel, network.patches.bias, stride=4).flatten(2).mT
    assert torch.allclose(streams_of(network, images)[0], convolved + network.positions, atol=1e-12)
    hidden = network.hidden(images)
    assert torch.allclose(outputs_of(network, images), network.head(hidden.mean(dim=1)), atol=1e-12)


def test_classifiers_pool_real_tokens() -> None:
    encoder = shaken(networks.build(ENCODER))
    ids, mask = inputs_of(encoder), torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4])
    hidden = encoder.hidden(ids, mask)
    for pooling, pooled in (
        ("first", hidden[:, 0]),
        ("mean", torch.stack([h[m.bool()].mean(0) for h, m in zip(hidden, mask, strict=True)])),
    ):
        network = networks.Classifier(encoder, 3, pooling).eval()
        assert torch.allclose(network(ids, mask), network.head(pooled), atol=1e-6)
    with_pooler = networks.Classifier(encoder, 3, pooler=True).eval()
    behind = torch.tanh(hidden[:, 0] @ with_pooler.pooler.weight.T + with_pooler.pooler.bias)
    assert torch.allclose(with_pooler(ids, mask), with_pooler.head(behind), atol=1e-6)
    alone = networks.Classifier(encoder, 3, "mean").eval()(ids)
    assert alone.shape == (3, 3)


@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_output_dropout_drops_behind_the_last_norm(positions: str) -> None:
    config = replace(DECODER, memory=0, positions=positions, dropout=0.5, output_dropout=True)
    network, plain = networks.build(config).train(), networks.build(replace(config, output_dropout=False)).train()
    plain.load_state_dict(network.state_dict())
    ids = inputs_of(network)
    keys = torch.arange(len(ids))
    dropped, whole = network.hidden(ids, keys=keys)[0], plain.hidden(ids, keys=keys)[0]
    kept = dropped != 0
    assert torch.allclose(dropped[kept], 2 * whole[kept])
    assert 0.3 < kept.float().mean() < 0.7
    assert torch.allclose(network.eval().hidden(ids)[0], plain.eval().hidden(ids)[0])


def test_a_scan_has_the_numbers_of_the_blocks() -> None:
    network = shaken(networks.build(VIT))
    images = inputs_of(network)
    found = unsmooth.scan(network, images, metrics=["mean_cosine"]).to_frame()
    for layer, tokens in enumerate(streams_of(network, images)):
        rows = by_hand.array(tokens[:, 1:])  # the class token is no content
        unit = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
        cosines = unit @ unit.transpose(0, 2, 1)
        wanted = (cosines.sum(axis=(1, 2)) - 4) / (4 * 3)
        got = found[(found["layer"] == layer) & (found["site"] == "residual")]["mean"].item()
        assert got == pytest.approx(wanted.mean(), abs=1e-5)


@pytest.mark.parametrize("remedy", ["deescalate", "neutreno", "sharpen"])
def test_remedies_act_through_a_classifier_too(remedy: str) -> None:
    """Blocks are called by the encoder's part, not by the encoder's own call."""
    encoder = shaken(networks.build(ENCODER), 0.1)
    network = networks.Classifier(encoder, 3).eval()
    ids = inputs_of(encoder)
    plain = network(ids)
    unsmooth.apply(network, remedy)
    through = network.encoder.hidden(ids)
    assert torch.allclose(network(ids), network.head(through[:, 0]), atol=1e-6)
    assert not torch.allclose(network(ids), plain, atol=1e-4)
    unsmooth.undo(network)
    assert torch.equal(network(ids), plain)


def test_a_remedy_with_memory_never_looks_ahead() -> None:
    for remedy in ("deescalate", "featscale", "attnscale", "contranorm", "neutreno"):
        network = shaken(networks.build(DECODER), 0.1)
        unsmooth.apply(
            network,
            remedy,
            **({"omega": 0.5} if remedy == "attnscale" else {"dc": -0.5} if remedy == "featscale" else {}),
        )
        ids = inputs_of(network)
        with torch.no_grad():
            _, memory = network(inputs_of(network, seed=1))
            other = ids.clone()
            other[:, 4] = (other[:, 4] + 1) % 40
            before, after = (network(one, memory)[0] for one in (ids, other))
        assert torch.equal(before[:, :4], after[:, :4]), remedy
        assert not torch.equal(before[:, 4:], after[:, 4:]), remedy


def test_too_long_a_text_and_a_wrong_memory_are_refused() -> None:
    with pytest.raises(UnsmoothError, match="at most 12 tokens but got 13"):
        networks.build(ENCODER)(torch.zeros(1, 13, dtype=torch.long))
    absolute = networks.build(replace(DECODER, memory=0, positions="learned"))
    memory = networks.build(DECODER).start_memory(1)
    ids = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(UnsmoothError, match="relative positions where there is a memory"):
        absolute(ids, memory)
    with pytest.raises(UnsmoothError, match="segments without padding"):
        networks.build(DECODER)(ids, memory, attention_mask=torch.ones(1, 3))
    with pytest.raises(UnsmoothError, match="Did you mean 'first'"):
        networks.Classifier(networks.build(ENCODER), 2, "firs")
