from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from unsmooth import keyed
from unsmooth.errors import UnsmoothError
from unsmooth.training.augment import Mix
from unsmooth.training.augment.transforms import beta_quantiles

BATCH, HEIGHT, WIDTH, CLASSES = 6, 32, 20, 7


def by_hand(numbers, images, labels, mixup, cutmix, switch, probability, smoothing):
    """Mixing as timm does it, in numpy, from the batch's keys."""
    share = numbers / 2.0**32
    cutting = share[1] < switch if mixup and cutmix else bool(cutmix)
    own = 1.0
    if share[0] < probability:
        own = stats.beta.ppf(share[2], *[cutmix if cutting else mixup] * 2)
    images = images.copy()
    if cutting:
        tall, wide = int(HEIGHT * np.sqrt(1 - own)), int(WIDTH * np.sqrt(1 - own))
        y, x = int(share[3] * HEIGHT), int(share[4] * WIDTH)
        top, bottom = np.clip([y - tall // 2, y + tall // 2], 0, HEIGHT)
        left, right = np.clip([x - wide // 2, x + wide // 2], 0, WIDTH)
        images[:, :, top:bottom, left:right] = images[::-1][:, :, top:bottom, left:right].copy()
        own = 1 - (bottom - top) * (right - left) / (HEIGHT * WIDTH)
    else:
        images = images * own + images[::-1] * (1 - own)
    hot = np.full((BATCH, CLASSES), smoothing / CLASSES)
    hot[np.arange(BATCH), labels] += 1 - smoothing
    return images, hot * own + hot[::-1] * (1 - own)


@pytest.mark.parametrize(
    ("mixup", "cutmix", "switch", "probability", "smoothing"),
    [(1.0, 0.8, 0.5, 1.0, 0.1), (0.2, 0.0, 0.5, 1.0, 0.0), (0.0, 1.0, 0.5, 0.6, 0.1), (0.8, 1.0, 0.3, 0.5, 0.2)],
)
def test_mixing_is_that_of_timm(mixup, cutmix, switch, probability, smoothing):
    generator = np.random.default_rng(0)
    images = generator.normal(size=(BATCH, 3, HEIGHT, WIDTH))
    labels = generator.integers(0, CLASSES, BATCH)
    mix = Mix(mixup, cutmix, switch, probability, smoothing, CLASSES)
    for key in keyed.keys(9, torch.arange(40)):
        got, targets = mix(torch.from_numpy(images).float(), torch.from_numpy(labels), key)
        numbers = keyed.derive(key, mix.draws).numpy()
        wanted, wanted_targets = by_hand(numbers, images, labels, mixup, cutmix, switch, probability, smoothing)
        np.testing.assert_allclose(got, wanted, atol=2e-3)
        np.testing.assert_allclose(targets, wanted_targets, atol=5e-4)
        np.testing.assert_allclose(targets.sum(1), 1.0, atol=1e-6)


@pytest.mark.parametrize("parameter", [0.2, 0.8, 4.0])
def test_the_share_of_an_image_follows_beta(parameter):
    mix = Mix(mixup=parameter, cutmix=0.0)
    shares = [mix.decide(keyed.derive(key, mix.draws), 4, 4)[1].item() for key in keyed.keys(6, torch.arange(1000))]
    assert stats.kstest(shares, stats.beta(parameter, parameter).cdf).pvalue > 1e-3


@pytest.mark.parametrize("parameter", [0.1, 0.8, 1.0, 4.0])
def test_the_table_is_within_one_step_of_beta(parameter):
    quantiles = beta_quantiles(parameter)
    # Of the upper half, the mirror image: quantiles of 1 − 10⁻²⁰ and the like are 1 in float64.
    np.testing.assert_allclose(quantiles[::-1], 1 - quantiles, atol=1e-12)
    lower = quantiles[: 2**12 + 1]
    half_way = stats.beta(parameter, parameter).cdf((lower[1:] + lower[:-1]) / 2)
    assert np.abs(half_way - (np.arange(2**12) + 0.5) / 2**13).max() < 2.0**-13


def test_without_mixing_only_targets_are_smoothed():
    images = torch.randn(3, 3, 4, 4)
    got, targets = Mix(0.0, 0.0, smoothing=0.1, classes=5)(images, torch.tensor([4, 0, 2]), torch.tensor(3))
    assert got is images
    np.testing.assert_allclose(targets, 0.02 + 0.9 * np.eye(5)[[4, 0, 2]], atol=1e-6)


def test_images_keep_their_dtype():
    images = torch.randn(4, 3, 8, 8, dtype=torch.bfloat16)
    got, targets = Mix()(images, torch.arange(4), torch.tensor(3))
    assert (got.dtype, targets.dtype) == (torch.bfloat16, torch.float32)


def test_negative_parameters_are_refused():
    with pytest.raises(UnsmoothError, match="0 or more"):
        Mix(mixup=-1.0)
