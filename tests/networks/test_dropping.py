"""What is dropped belongs to the sample: not to its batch, its neighbours or torch's generator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.networks.tiny import DECODER, ENCODER, VIT, inputs_of, shaken
from unsmooth import networks
from unsmooth.networks.dropping import Dropout, DropPath

KEYS = torch.tensor([5, 77, 123456, 2**32 - 1])


@pytest.mark.parametrize("config", [VIT, ENCODER, DECODER], ids=lambda config: config.kind)
def test_a_sample_is_the_same_in_any_batch(config: networks.Config) -> None:
    network = shaken(networks.build(replace(config, dropout=0.3, drop_path=0.4))).train()
    inputs = inputs_of(network, rows=4)

    def run(rows: list[int], keys: torch.Tensor = KEYS) -> torch.Tensor:
        found = network(inputs[rows], keys=keys[rows])
        return (found[0] if isinstance(found, tuple) else found).detach()

    whole = run([0, 1, 2, 3])
    assert torch.allclose(run([2]), whole[2:3], atol=1e-5)
    assert torch.allclose(run([3, 1]), whole[[3, 1]], atol=1e-5)
    torch.manual_seed(1)
    assert torch.equal(run([0, 1, 2, 3]), whole)
    assert not torch.allclose(run([0], KEYS + 1), whole[:1], atol=1e-2)
    assert not torch.allclose(network.eval()(inputs)[0].detach(), whole[0], atol=1e-2)


def test_without_keys_they_come_from_torchs_generator() -> None:
    network = networks.build(replace(VIT, drop_path=0.5)).train()
    shaken(network).train()
    images = inputs_of(network, rows=8)
    torch.manual_seed(0)
    first, second = network(images), network(images)
    torch.manual_seed(0)
    assert torch.equal(network(images), first)
    assert not torch.equal(first, second)


def test_nothing_is_drawn_where_nothing_is_dropped() -> None:
    network = networks.build(VIT).train()
    before = torch.random.get_rng_state()
    network(inputs_of(network))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_rate_scale_and_independence() -> None:
    """Against the binomial: shares, and the correlation of two places, two samples and two elements."""
    rate, count = 0.3, 40_000
    dropped = Dropout(rate, place=3)(torch.ones(4, count), KEYS).numpy()
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.7)}
    noise = (rate * (1 - rate) / count) ** 0.5
    kept = dropped > 0
    assert np.abs(kept.mean(axis=1) - (1 - rate)).max() < 5 * noise
    other = Dropout(rate, place=4)(torch.ones(4, count), KEYS).numpy() > 0
    for first, second in ((kept[0], kept[1]), (kept[0], other[0]), (kept[0, 1:], kept[0, :-1])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / count**0.5


def test_a_path_is_dropped_for_whole_samples_and_more_often_with_depth() -> None:
    keys = torch.arange(20_000)
    found = DropPath(0.25, place=1)(torch.ones(20_000, 2, 3), keys).numpy()
    assert (found == found[:, :1, :1]).all()
    assert set(np.unique(found)) == {0.0, np.float32(1 / 0.75)}
    assert abs((found[:, 0, 0] > 0).mean() - 0.75) < 5 * (0.25 * 0.75 / 20_000) ** 0.5
    network = networks.build(replace(VIT, depth=5, drop_path=0.4))
    rates = [[block.attention_path.rate, block.mlp_path.rate] for block in network.stack.blocks]
    assert np.allclose(rates, np.repeat(np.linspace(0, 0.4, 5)[:, None], 2, axis=1))
    places = [module.place for module in network.modules() if isinstance(module, Dropout | DropPath)]
    assert len(places) == len(set(places)) == 1 + 5 * 5
