from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.training.augment.pictures import pictures
from unsmooth import keyed
from unsmooth.training.augment import Augment, AugmentConfig

OFF = AugmentConfig(crop_pad=0, flip=0.0, rand="", erase=0.0, mixup=0.0, cutmix=0.0, smoothing=0.0)
UNMIXED = AugmentConfig(erase=0.25, mixup=0.0, cutmix=0.0)
EVERYTHING = AugmentConfig(erase=0.25)


def batch(count: int = 53) -> tuple[torch.Tensor, ...]:
    images = torch.from_numpy(pictures())[:count]
    return images, torch.arange(count) % 100, keyed.keys(1, torch.arange(count)), torch.tensor(12345)


def test_with_everything_off_images_are_only_normalised():
    images, labels, keys, key = batch()
    got, targets = Augment(OFF)(images, labels, keys, key)
    mean, std = np.reshape(OFF.mean, (3, 1, 1)), np.reshape(OFF.std, (3, 1, 1))
    np.testing.assert_allclose(got, (images.numpy() / 255 - mean) / std, atol=1e-5)
    assert torch.equal(targets, F.one_hot(labels, 100).float())


def test_an_image_gets_the_same_in_any_batch():
    images, labels, keys, key = batch()
    augment = Augment(UNMIXED)
    together, targets = augment(images, labels, keys, key)
    for part in (slice(0, 1), slice(7, 8), slice(20, 53)):
        alone, alone_targets = augment(images[part], labels[part], keys[part], key + 1)
        assert torch.equal(alone, together[part])
        assert torch.equal(alone_targets, targets[part])
    assert not torch.equal(augment(images, labels, keys + 1, key)[0], together)


def test_steps_come_in_their_order_with_keys_of_their_own():
    images, labels, keys, key = batch()
    augment = Augment(EVERYTHING)
    assert augment.rand is not None
    own = augment._keys(keys, key)
    by_hand = augment.crop.with_keys(images, own["crop"])
    by_hand = augment.rand.with_keys(augment.flip.with_keys(by_hand, own["flip"]), own["rand"])
    by_hand = augment.erase.with_keys(augment.normalise(by_hand), own["erase"])
    by_hand, targets = augment.mix.with_keys(by_hand, labels, own["mix"])
    got, got_targets = augment(images, labels, keys, key)
    assert torch.equal(got, by_hand)
    assert torch.equal(got_targets, targets)
    columns = [tuple(own[name][0].tolist()) for name in ("crop", "flip", "rand", "erase")]
    assert len(set(sum(columns, ()))) == sum(map(len, columns))


@pytest.mark.parametrize("off", [{"crop_pad": 0}, {"flip": 0.0}, {"erase": 0.0}, {"rand": ""}])
def test_switching_one_step_off_leaves_the_draws_of_the_others(off):
    _, _, keys, key = batch()
    some, everything = (
        Augment(config)._keys(keys, key) for config in (dataclasses.replace(EVERYTHING, **off), EVERYTHING)
    )
    for name, drawn in everything.items():
        if name != "rand" or "rand" not in off:
            assert torch.equal(some[name], drawn)


def test_what_comes_in_from_outside_has_the_mean_colour():
    images, labels, keys, key = batch(20)
    config = dataclasses.replace(OFF, rand="rand-m10-n1-p1.0", mean=(0.2, 0.4, 0.6), std=(1.0, 1.0, 1.0))
    augment = Augment(config)
    assert augment.rand is not None
    assert augment.rand.affine.fill.flatten().tolist() == [51, 102, 153]
    white = torch.full_like(images, 255)
    moved = (augment(white, labels, keys, key)[0] + torch.tensor(config.mean).view(3, 1, 1)) * 255
    fills = (moved.round().permute(0, 2, 3, 1) == torch.tensor([51.0, 102.0, 153.0])).all(-1)
    assert fills.flatten(1).any(1).sum() >= 3


def test_nothing_is_made_on_the_host_or_asked_back():
    # Tensors on "meta" have no values: a branch on one, or another device in between, is an error.
    given = [part.to("meta") for part in batch()]
    images, targets = Augment(EVERYTHING, dtype=torch.bfloat16).to("meta")(*given)
    assert (images.device.type, images.dtype, images.shape) == ("meta", torch.bfloat16, (53, 3, 32, 32))
    assert targets.shape == (53, 100)


def test_one_graph_holds_it_all():
    given = batch(8)
    augment = Augment(EVERYTHING)
    compiled = torch.compile(augment, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(compiled(*given), augment(*given), strict=True):
        assert torch.equal(got, wanted)


def test_there_is_nothing_to_save():
    assert Augment(EVERYTHING).state_dict() == {}
