from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tests.training.augment.pictures import pictures
from unsmooth import keyed
from unsmooth.errors import UnsmoothError
from unsmooth.training.augment import RandomCrop


@pytest.mark.parametrize(("pad", "fill"), [(4, 0), (2, 9), (0, 0)])
def test_each_crop_is_a_window_of_the_padded_image(pad, fill):
    images = np.ascontiguousarray(pictures(16)[-4:, :, :, :13])  # plain noise, which looks different at each shift
    crops = RandomCrop(pad, fill)(torch.from_numpy(images), keyed.keys(1, torch.arange(4))).numpy()
    for image, crop in zip(images, crops, strict=True):
        padded = np.pad(image, [(0, 0), (pad, pad), (pad, pad)], constant_values=fill)
        shifts = [(y, x) for y in range(2 * pad + 1) for x in range(2 * pad + 1)]
        assert sum((padded[:, y : y + 16, x : x + 13] == crop).all() for y, x in shifts) == 1


def test_all_shifts_are_alike():
    # A single bright pixel tells the shift.
    images = torch.zeros(20_000, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 1
    place = RandomCrop(4)(images, keyed.keys(2, torch.arange(20_000))).flatten(1).long().argmax(1)
    assert stats.chisquare(np.bincount(place, minlength=81)).pvalue > 1e-3


def test_a_negative_border_is_refused():
    with pytest.raises(UnsmoothError, match="0 pixels or more"):
        RandomCrop(-1)
