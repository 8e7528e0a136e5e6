from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tests.training.augment.pictures import pictures
from unsmooth import keyed
from unsmooth.errors import UnsmoothError
from unsmooth.training.augment import RandomFlip


def test_images_are_mirrored_or_left_alone():
    images = pictures()[-4:].repeat(1000, axis=0)
    flipped = RandomFlip(0.3)(torch.from_numpy(images), keyed.keys(1, torch.arange(4000))).numpy()
    mirrored = (flipped == images[..., ::-1]).all((1, 2, 3))
    alone = (flipped == images).all((1, 2, 3))
    assert (mirrored ^ alone).all()
    assert stats.binomtest(int(mirrored.sum()), 4000, 0.3).pvalue > 1e-3


@pytest.mark.parametrize(("p", "expected"), [(0.0, False), (1.0, True)])
def test_never_and_always(p, expected):
    images = torch.arange(3 * 4).view(1, 3, 1, 4).repeat(500, 1, 1, 1)
    flipped = RandomFlip(p)(images, keyed.keys(1, torch.arange(500)))
    assert np.array_equal(flipped, images.flip(-1) if expected else images)


def test_a_share_beyond_one_is_refused():
    with pytest.raises(UnsmoothError, match="from 0 to 1"):
        RandomFlip(1.5)
