from __future__ import annotations

import math

import pytest

from unsmooth.errors import UnsmoothError
from unsmooth.training.augment import RandSpec


def test_the_policies_of_known_recipes():
    assert RandSpec.parse("rand-m9-n2-mstd1.0") == RandSpec(9.0, 2, 0.5, 1.0, 10.0, False)
    assert RandSpec.parse("rand-m9-mstd0.5-inc1") == RandSpec(9.0, 2, 0.5, 0.5, 10.0, True)
    assert RandSpec.parse("rand-n3-p0.7-mmax20-m15") == RandSpec(15.0, 3, 0.7, 0.0, 20.0, False)
    assert RandSpec.parse("rand") == RandSpec()
    assert not RandSpec.parse("rand-inc0").increasing


@pytest.mark.parametrize("text", ["rand-mstdinf", "rand-mstd101"])
def test_a_boundless_spread_is_uniform(text):
    assert RandSpec.parse(text).spread == math.inf


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("augmix-m3", "begins with 'rand'"),
        ("rand-w0", "all as likely"),
        ("rand-x3", "Known: inc, m, mmax, mstd, n, p"),
        ("rand-m", "between dashes"),
        ("rand-n0", "n >= 1"),
        ("rand-p1.5", "p from 0 to 1"),
    ],
)
def test_what_cannot_be_read_is_refused(text, says):
    with pytest.raises(UnsmoothError, match=says):
        RandSpec.parse(text)
