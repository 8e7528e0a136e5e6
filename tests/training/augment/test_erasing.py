from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from unsmooth import keyed
from unsmooth.errors import UnsmoothError
from unsmooth.training.augment import RandomErasing


def by_hand(numbers: np.ndarray, erasing: RandomErasing, height: int, width: int) -> tuple[int, ...]:
    """The rectangle of one image from its keys, by trying one after the other."""
    share = numbers / 2.0**32
    if share[0] > erasing.p:
        return 0, 0, 0, 0
    for size, shape, down, right in share[2:].reshape(4, 10).T:
        area = (erasing.smallest + (erasing.largest - erasing.smallest) * size) * height * width
        ratio = math.exp(math.log(0.3) * (1 - 2 * shape))
        tall, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if tall < height and wide < width:
            return int(down * (height - tall + 1)), int(right * (width - wide + 1)), tall, wide
    return 0, 0, 0, 0


@pytest.mark.parametrize("largest", [1 / 3, 1.0])
def test_the_first_rectangle_that_fits_is_taken(largest):
    erasing = RandomErasing(p=0.5, largest=largest)
    keys = keyed.derive(keyed.keys(4, torch.arange(2000)), erasing.draws)
    got = erasing.rectangles(keys, 32, 24)
    wanted = np.array([by_hand(row, erasing, 32, 24) for row in keys.numpy()])
    # Numbers have 24 bits there and 32 here, which may move a corner or a side now and then.
    same = (got.numpy() == wanted).all(1)
    assert same.mean() > 0.999
    assert stats.binomtest(int((got[:, 2] > 0).sum()), 2000, 0.5).pvalue > 1e-3


@pytest.mark.parametrize("mode", ["pixel", "rand", "const"])
def test_what_is_erased_is_replaced_and_the_rest_is_left(mode):
    erasing = RandomErasing(p=1.0, mode=mode)
    images = torch.full((300, 3, 16, 16), 50.0)
    keys = keyed.keys(5, torch.arange(300))
    erased = erasing(images, keys)
    inside = np.zeros((300, 1, 16, 16), dtype=bool)
    for place, (top, left, tall, wide) in enumerate(
        erasing.rectangles(keyed.derive(keys, erasing.draws), 16, 16).tolist()
    ):
        inside[place, :, top : top + tall, left : left + wide] = True
    assert ((erased != 50.0).numpy() == inside).all()
    values = erased.numpy()[np.broadcast_to(inside, erased.shape)]
    if mode == "const":
        assert (values == 0).all()
    elif mode == "rand":
        assert len(np.unique(values)) == 900
        assert stats.kstest(np.unique(values), "norm").pvalue > 1e-3
    else:
        assert len(np.unique(values)) > 0.99 * len(values)
        assert stats.kstest(values, "norm").pvalue > 1e-3


def test_other_modes_are_refused():
    with pytest.raises(UnsmoothError, match="pixel"):
        RandomErasing(mode="pixels")
