from __future__ import annotations

import pytest

from tests.training.augment.pictures import differences, pictures


@pytest.mark.parametrize("name", ["AutoContrast", "Equalize", "Invert"])
def test_operations_without_argument_are_pillows(name):
    assert differences(name, pictures(), 0.0).max() == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Posterize", [0, 1, 3, 4, 8]),
        ("Solarize", [0, 1, 100, 230, 255, 256]),
        ("SolarizeAdd", [0, 1, 99, 110]),
    ],
)
def test_operations_with_argument_are_pillows(name, arguments):
    for argument in arguments:
        assert differences(name, pictures()[::2], argument).max() == 0


def test_equalize_with_more_pixels_and_another_shape():
    # 37 × 37 pixels: steps of 5 levels, and numbers that nothing divides.
    assert differences("Equalize", pictures(37), 0.0).max() == 0
    assert differences("AutoContrast", pictures(8), 0.0).max() == 0
