from __future__ import annotations

import numpy as np
import pytest
from benchmarks.augment_exactness import ours, theirs

from tests.training.augment.pictures import differences, pictures

ARGUMENTS = {
    "Rotate": [0.0, 30.0, -30.0, 27.0, -3.123, 21.7],
    "ShearX": [0.0, 0.3, -0.3, 0.27, -0.1171],
    "ShearY": [0.0, 0.3, -0.3, 0.27, -0.1171],
    "TranslateXRel": [0.0, 0.45, -0.45, 0.125, -0.140625, 0.3517],
    "TranslateYRel": [0.0, 0.45, -0.45, 0.125, -0.140625, 0.3517],
}


@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_moving_pixels_is_pillows(name, cubic):
    for argument in ARGUMENTS[name]:
        assert differences(name, pictures()[::2], argument, cubic).max() == 0, argument


@pytest.mark.parametrize("name", ["Rotate", "TranslateXRel", "TranslateYRel"])
def test_images_that_are_not_square(name):
    tall = np.ascontiguousarray(pictures(24)[::4, :, :, 3:14])
    assert differences(name, tall, ARGUMENTS[name][-1], cubic=True).max() == 0


def test_the_comparison_can_fail():
    images = pictures()[:8]
    near = np.abs(ours("Rotate", images, [20.1] * 8, True).astype(int) - theirs("Rotate", images, [20.0] * 8, True))
    assert near.max() > 1
