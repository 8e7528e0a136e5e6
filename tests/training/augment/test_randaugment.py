from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from benchmarks.augment_exactness import FILL, by_pillow
from PIL import Image
from scipy import stats

from tests.training.augment.pictures import pictures
from unsmooth import keyed
from unsmooth.errors import UnsmoothError
from unsmooth.training.augment import RandAugment
from unsmooth.training.augment.operations import IDENTITY, NAMES, number

UNLIKELY = 1e-3  # keys are fixed, so these tests give the same answer each time


def chosen(text: str, count: int = 60_000, **options):
    policy = RandAugment.parse(text, **options)
    return policy.choose(keyed.derive(keyed.keys(keyed.stream(0, "test"), torch.arange(count)), policy.draws))


def test_operations_are_drawn_alike_and_independently():
    operation = chosen("rand-m9-n2-p1.0").operation
    counts = np.histogram2d(*operation.T.numpy(), bins=len(NAMES), range=[(0, len(NAMES))] * 2)[0]
    assert stats.chisquare(counts.flatten()).pvalue > UNLIKELY


@pytest.mark.parametrize(("text", "share"), [("rand-m9-n2", 0.5), ("rand-m9-n3-p0.2", 0.2), ("rand-m9-p0.0", 0.0)])
def test_each_operation_is_carried_out_with_its_probability(text, share):
    carried_out = (chosen(text).operation != IDENTITY).double().mean(0)
    assert carried_out.tolist() == pytest.approx([share] * len(carried_out), abs=4 * 0.5 / math.sqrt(60_000))


def test_levels_are_normal_and_cut_and_signs_even():
    operation, argument, cubic = chosen("rand-m9-n2-mstd1.0-p1.0", 200_000)
    turned = argument[operation == number("Rotate")].numpy()
    level = np.abs(turned) / 3
    assert stats.binomtest(int((turned < 0).sum()), len(turned)).pvalue > UNLIKELY
    at_top = stats.norm.sf(1.0)
    assert stats.binomtest(int((level == 10).sum()), len(level), at_top).pvalue > UNLIKELY
    below = level[level < 10]
    assert stats.kstest(below, lambda value: stats.norm.cdf(value - 9) / (1 - at_top)).pvalue > UNLIKELY
    assert stats.binomtest(int(cubic.sum()), cubic.numel()).pvalue > UNLIKELY


def test_levels_without_bounds_are_uniform_and_without_spread_fixed():
    operation, argument, _ = chosen("rand-m8-mstdinf-p1.0")
    assert (
        stats.kstest(argument[operation == number("ShearX")].abs().numpy(), stats.uniform(0, 0.24).cdf).pvalue
        > UNLIKELY
    )
    operation, argument, _ = chosen("rand-m15-mmax20-p1.0")
    assert set(argument[operation == number("Rotate")].tolist()) == {-45.0, 45.0}
    operation, argument, _ = chosen("rand-m15-p1.0")
    assert set(argument[operation == number("Rotate")].tolist()) == {-30.0, 30.0}


@pytest.mark.parametrize(("interpolation", "share"), [("bilinear", 0.0), ("bicubic", 1.0)])
def test_a_fixed_interpolation_is_always_taken(interpolation, share):
    assert chosen("rand-m9", 100, interpolation=interpolation).cubic.double().mean() == share


@pytest.mark.parametrize("text", ["rand-m9-n2-mstd1.0-p0.9", "rand-m7-n3-mstd2.0-inc1-p1.0"])
def test_operations_in_a_row_are_pillows(text):
    images = torch.from_numpy(pictures())
    policy = RandAugment.parse(text, fill=FILL)
    keys = keyed.keys(7, torch.arange(len(images)))
    choice = policy.choose(keyed.derive(keys, policy.draws))
    results = policy(images, keys).permute(0, 2, 3, 1).numpy()
    for place, image in enumerate(images.permute(0, 2, 3, 1).numpy()):
        picture = Image.fromarray(np.ascontiguousarray(image))
        for operation, argument, cubic in zip(*(part[place].tolist() for part in choice), strict=True):
            if operation != IDENTITY:
                picture = by_pillow(NAMES[operation], picture, argument, cubic)
        assert (np.asarray(picture) == results[place]).all(), place


def test_an_image_gets_the_same_in_any_batch():
    images, keys = torch.from_numpy(pictures()), keyed.keys(3, torch.arange(53))
    policy = RandAugment.parse("rand-m9-n2-mstd1.0")
    together = policy(images, keys)
    assert (together != images).flatten(1).any(1).float().mean() > 0.5
    for place in range(0, 53, 5):
        assert torch.equal(policy(images[place : place + 1], keys[place : place + 1])[0], together[place])
    assert torch.equal(policy(images.flip(0), keys.flip(0)).flip(0), together)


def test_unknown_interpolations_are_refused():
    with pytest.raises(UnsmoothError, match="bicubic"):
        RandAugment.parse("rand-m9", interpolation="cubic")
