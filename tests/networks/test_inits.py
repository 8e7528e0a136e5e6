"""How weights start, by their moments and products."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.networks.tiny import DECODER, ENCODER, VIT, shaken
from unsmooth import networks
from unsmooth.models import with_random_weights
from unsmooth.networks.inits import INITS

WIDE = replace(VIT, dim=96, heads=3, hidden=200, depth=2)


@pytest.mark.parametrize("name", list(INITS))
def test_from_the_seed_alone(name: str) -> None:
    for config in (VIT, ENCODER, DECODER):
        torch.manual_seed(0)
        first = networks.build(replace(config, init=name), seed=4).state_dict()
        torch.manual_seed(1)
        network = shaken(networks.build(replace(config, init=name)))
        networks.initialise(network, name, 4)
        assert all(torch.equal(value, first[key]) for key, value in network.state_dict().items())
        other = networks.build(replace(config, init=name), seed=5).state_dict()
        assert not torch.equal(
            other["stack.blocks.0.attention.qkv.weight"], first["stack.blocks.0.attention.qkv.weight"]
        )


@pytest.mark.parametrize("name", list(INITS))
def test_norms_and_biases(name: str) -> None:
    network = shaken(networks.build(replace(ENCODER, init=name, norm="peri", positions="scaled_sinusoidal")))
    networks.initialise(network, name, 0)
    for key, parameter in network.named_parameters():
        if parameter.ndim == 1 and key != "positions.scale":
            wanted = 1.0 if "norm" in key and key.endswith("weight") else 0.0
            assert (parameter == wanted).all(), key
    assert network.positions.scale.item() == pytest.approx(16**-0.5)


def test_truncated_normal() -> None:
    network = networks.build(WIDE)
    drawn = torch.cat([p.flatten() for p in network.parameters() if p.ndim > 1]).detach().double().numpy()
    assert np.abs(drawn).max() <= 0.04 + 1e-8
    # A normal cut off at two deviations has deviation 0.8796 of it.
    assert drawn.std() == pytest.approx(0.02 * 0.8796, rel=0.01)
    assert abs(drawn.mean()) < 5 * 0.02 / math.sqrt(len(drawn))


def test_xavier() -> None:
    network = networks.build(replace(WIDE, init="xavier"))
    block = network.stack.blocks[1]
    parts = {
        **dict(zip("qkv", block.attention.qkv.weight.chunk(3), strict=True)),
        "out": block.attention.out.weight,
        "up": block.mlp.up.weight,
    }
    for name, weight in parts.items():
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.97 * bound < weight.abs().max().item() <= bound, name
        assert float(weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.03), name


@pytest.mark.parametrize("name", ["mimetic", "mimetic_sinusoidal"])
def test_mimetic(name: str) -> None:
    network = networks.build(replace(WIDE, init=name))
    noise = np.random.default_rng(0).normal(size=(96, 96)) / math.sqrt(96)
    like = np.linalg.svd(0.7 * noise + 0.7 * np.eye(96), compute_uv=False)
    # In the limit of wide matrices the largest is √(27/4) of 0.7.
    assert like[0] == pytest.approx(0.7 * math.sqrt(27 / 4), rel=0.05)
    for block in network.stack.blocks:
        query, key, value = (part.detach().double() for part in block.attention.qkv.weight.chunk(3))
        product = value.T @ block.attention.out.weight.detach().double().T
        rest = product + 0.4 * torch.eye(96, dtype=torch.float64)
        assert float(product.diagonal().mean()) == pytest.approx(-0.4, abs=0.02)
        assert float(rest.std()) == pytest.approx(0.4 / math.sqrt(96), rel=0.03)
        for head in range(3):
            rows = slice(32 * head, 32 * head + 32)
            looked = query[rows].T @ key[rows]
            assert torch.linalg.matrix_rank(looked) == 32
            # The nearest of rank 32 keeps the largest singular values, those of another 0.7 (Z + I) up to chance.
            assert np.allclose(torch.linalg.svdvals(looked)[:32].numpy(), like[:32], rtol=0.08)
            assert float(looked.trace()) > 0.1 * 96
    found = network.positions[0, 1:].detach().numpy()
    if name == "mimetic_sinusoidal":  # 2 × 2 patches: rows in the first half of the channels, columns in the second
        assert np.allclose(found[:2, :48], found[0, :48])
        assert np.allclose(found[::2, 48:], found[0, 48:])
        assert np.allclose(found[2, :2], [math.sin(1), math.cos(1)])
    else:
        assert np.abs(found).max() <= 0.04


def test_fresh_weights_are_of_the_configurations_kind() -> None:
    fresh = with_random_weights(shaken(networks.build(replace(WIDE, init="mimetic"))), seed=3)
    block = fresh.stack.blocks[0].attention
    assert float((block.qkv.weight[-96:].T @ block.out.weight.T).diagonal().mean()) == pytest.approx(-0.4, abs=0.05)
