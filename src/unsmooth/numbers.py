"""What counts as a number where an option wants one."""

from __future__ import annotations

import numpy


def is_number(value: object) -> bool:
    """Whether an option is a real number, Python's or numpy's; True and False are none.

    >>> is_number(1), is_number(numpy.float32(0.5)), is_number(True), is_number(1j), is_number("1")
    (True, True, False, False, False)
    """
    return isinstance(value, int | float | numpy.integer | numpy.floating) and not isinstance(value, bool)
