from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.augment.pictures import differences, pictures
from unsmooth.errors import UnsmoothError
from unsmooth.training.augment.operations import smoothed


@pytest.mark.parametrize("factor", [0.1, 0.37, 0.91, 1.0, 1.09, 1.72, 1.9])
@pytest.mark.parametrize("name", ["Color", "Contrast", "Brightness", "Sharpness"])
def test_blending_is_pillows_to_the_bit(name, factor):
    assert differences(name, pictures(), factor).max() == 0


@pytest.mark.parametrize("name", ["Contrast", "Sharpness"])
def test_images_that_are_not_square(name):
    wide = np.ascontiguousarray(pictures(37)[:, :, 5:20])
    assert differences(name, wide, 1.63).max() == 0


def test_images_too_small_to_smooth_are_refused():
    with pytest.raises(UnsmoothError, match="3×3"):
        smoothed(torch.zeros(1, 3, 2, 8))
