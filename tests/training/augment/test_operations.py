from __future__ import annotations

import pytest
import torch
from benchmarks.augment_exactness import argument_of

from unsmooth.training.augment.operations import IDENTITY, NAMES, Arguments, number


@pytest.mark.parametrize("increasing", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_timm_to_the_bit(name, increasing):
    arguments = Arguments(increasing)
    levels = [step / 16 for step in range(161)] + [1 / 3, 9.9999999, 10.0]
    level = torch.tensor(levels, dtype=torch.float64)
    for negative in (False, True):
        got = arguments(
            torch.full_like(level, number(name), dtype=torch.int64), level, torch.full_like(level, negative) > 0
        )
        assert got.tolist() == [argument_of(name, value, negative, increasing) for value in levels]


def test_the_published_ends_of_each_range():
    top = torch.full((len(NAMES),), 10.0, dtype=torch.float64)
    operations, heads = torch.arange(len(NAMES)), torch.zeros(len(NAMES), dtype=torch.bool)
    plain = dict(zip(NAMES, Arguments()(operations, top, heads).tolist(), strict=True))
    strong = dict(zip(NAMES, Arguments(increasing=True)(operations, top, ~heads).tolist(), strict=True))
    assert plain == {
        "AutoContrast": 0, "Equalize": 0, "Invert": 0,
        "Rotate": 30, "Posterize": 4, "Solarize": 256, "SolarizeAdd": 110,
        "Color": pytest.approx(1.9), "Contrast": pytest.approx(1.9), "Brightness": pytest.approx(1.9),
        "Sharpness": pytest.approx(1.9), "ShearX": 0.3, "ShearY": 0.3, "TranslateXRel": 0.45, "TranslateYRel": 0.45,
    }  # fmt: skip
    assert (strong["Rotate"], strong["Posterize"], strong["Solarize"], strong["Color"]) == (-30, 0, 0, 0.1)


def test_identity_has_no_argument():
    assert Arguments()(torch.tensor([IDENTITY]), torch.tensor([10.0]), torch.tensor([True])).item() == 0
