"""What counts as a number where an option wants one, and how figures are written for people."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy


def is_number(value: object) -> bool:
    """Whether an option is a real number, Python's or numpy's; True and False are none.

    >>> is_number(1), is_number(numpy.float32(0.5)), is_number(True), is_number(1j), is_number("1")
    (True, True, False, False, False)
    """
    return isinstance(value, int | float | numpy.integer | numpy.floating) and not isinstance(value, bool)


@dataclass(frozen=True)
class Precision:
    """How figures that stand side by side are written: all with the same number of decimals.

    Args:
        decimals: How many; as powers of ten where `scientific`.
        scientific: For figures of which the largest is too large or too small to be written out.
    """

    decimals: int = 3
    scientific: bool = False

    @classmethod
    def of(cls, values: Iterable[float | None], decimals: int = 3) -> Precision:
        """The precision at which the largest of `values` shows what it should.

        Args:
            values: All that stand side by side; None, NaN and infinities do not count.
            decimals: What figures from 0.1 to 100 are given. Larger ones have four digits in all, smaller ones as many
                digits as a figure of 0.1 has.

        >>> [Precision.of(values).decimals for values in ([0.5, -0.0004], [123.4, 0.5], [0.004], [12345.0], [])]
        [3, 1, 5, 0, 3]
        """
        largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
        order = math.floor(math.log10(largest)) if largest else 0
        if not -5 < order < 7:
            return cls(decimals - 1, scientific=True)
        if order >= 2:
            return cls(min(decimals, max(0, 3 - order)))
        return cls(decimals - 1 - min(order, -1))

    def __call__(self, value: float | None, signed: bool = False) -> str:
        """A figure with a real minus sign, none in front of a zero, and a plus where it is a change.

        >>> say = Precision(2)
        >>> say(-0.25), say(-0.001), say(0.25, signed=True), say(0.001, signed=True), say(math.nan), say(None)
        ('−0.25', '0.00', '+0.25', '0.00', '–', '–')
        """
        if value is None or not math.isfinite(value):
            return "–"
        text = f"{value:+.{self.decimals}{'e' if self.scientific else 'f'}}"
        shown = float(text) and (signed or value < 0)
        return (text if shown else text[1:]).replace("-", "−")


def spoken(value: float | None, digits: int = 4, signed: bool = False) -> str:
    """A figure that stands alone, to so many digits, four at most.

    >>> spoken(-0.123456), spoken(-0.0), spoken(1234.5, 3), spoken(0.25, signed=True), spoken(math.nan)
    ('−0.1235', '0', '1230', '+0.25', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{float(f'{value or 0.0:.{digits}g}'):+.4g}"
    return (text if value and (signed or value < 0) else text[1:]).replace("-", "−")
