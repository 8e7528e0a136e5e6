"""The corruptions as a whole: shapes, repetition, splits, order of severities, errors."""

import itertools

import pytest
import torch

from tests.evidence.pictures import far_off, pictures
from unsmooth.errors import UnsmoothError
from unsmooth.evidence.corruptions import CORRUPTIONS, NAMES, SEVERITIES, corrupt


def test_the_names_are_those_of_the_registry():
    assert len(NAMES) == 15
    assert sorted(NAMES) == sorted(CORRUPTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_shape_repetition_and_split(name):
    images = pictures(4)
    before = images.clone()
    whole = corrupt(images, name, 3, seed=5)
    assert whole.dtype == torch.uint8
    assert whole.shape == images.shape
    assert torch.equal(images, before)
    assert not torch.equal(whole, images)
    assert torch.equal(whole, corrupt(images, name, 3, seed=5))
    single = [corrupt(images[i : i + 1], name, 3, seed=5, sample=torch.tensor([i])) for i in range(4)]
    assert torch.equal(whole, torch.cat(single))


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"jpeg_compression"}))
def test_other_sizes(name):
    images = pictures(1)[:, :, :24, :24].contiguous()
    assert corrupt(images, name, 5).shape == images.shape


DRAWN = sorted(
    {"gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog"}
    | {"elastic_transform"}
)


@pytest.mark.parametrize("name", DRAWN)
def test_draws_differ_between_images_and_seeds(name):
    images = pictures(1).repeat(2, 1, 1, 1)
    first = corrupt(images, name, 4)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, corrupt(images, name, 4, seed=1))


GROWING = (
    "gaussian_noise shot_noise impulse_noise defocus_blur zoom_blur snow fog brightness contrast jpeg_compression"
).split()


@pytest.mark.parametrize("name", GROWING)
def test_distance_grows_with_severity(name):
    images = pictures(12)
    distance = [far_off(corrupt(images, name, severity), images) for severity in SEVERITIES]
    assert all(low < high for low, high in itertools.pairwise(distance)), distance


# Their constants do not rise in every step. For elastic_transform they trade a tilt for a displacement: not even the
# ends are ordered by distance.
@pytest.mark.parametrize("name", ["glass_blur", "motion_blur", "frost", "pixelate"])
def test_the_last_severity_is_farther_than_the_first(name):
    images = pictures(12)
    assert far_off(corrupt(images, name, 5), images) > far_off(corrupt(images, name, 1), images)


def test_fog_and_snow_only_lighten_black():
    black = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    assert torch.equal(corrupt(black, "fog", 5), black)  # scaled back to the brightest value, which is 0
    snowy = corrupt(black, "snow", 1)
    assert snowy.min() == int(255 * 0.05 * 0.5)  # what is whitened of black, between the flakes
    assert torch.equal(snowy[:, 0], snowy[:, 2])
    assert torch.equal(snowy, snowy.flip(2, 3))  # flakes come twice, turned by 180 degrees


@pytest.mark.parametrize(
    ("images", "name", "severity", "sample", "words"),
    [
        (torch.zeros(1, 3, 32, 32), "fog", 1, None, "uint8 images"),
        (torch.zeros(1, 1, 32, 32, dtype=torch.uint8), "fog", 1, None, "uint8 images"),
        (torch.zeros(1, 3, 32, 30, dtype=torch.uint8), "fog", 1, None, "uint8 images"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fog", 6, None, "severity from 1 to 5"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fog", 0, None, "severity from 1 to 5"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "frog", 1, None, "Did you mean 'fog'"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fog", 1, torch.arange(2), "one per image"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fog", 1, torch.zeros(1), "one per image"),
    ],
)
def test_errors_in_one_line(images, name, severity, sample, words):
    with pytest.raises(UnsmoothError, match=words) as caught:
        corrupt(images, name, severity, sample=sample)
    assert "\n" not in str(caught.value)


def test_an_empty_batch_stays_empty():
    assert corrupt(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), "fog", 1).shape == (0, 3, 32, 32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_the_same_on_a_gpu(name):
    images = pictures(4)
    difference = (corrupt(images.cuda(), name, 5).cpu().int() - corrupt(images, name, 5).int()).abs()
    assert (difference > 0).double().mean() < 1e-3
