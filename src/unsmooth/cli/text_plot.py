"""Curves in a terminal: two by four dots to a letter, as braille has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

# Dot of a letter by column and row, as bits of its number above U+2800.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
Points = Sequence[tuple[float, float]]


def draw(series: Mapping[str, Points], width: int, height: int) -> list[list[tuple[str, str]]]:
    """Curves over one another as lines of (letter, name of the curve that drew it last, or nothing).

    >>> lines = draw({"a": [(0, 0), (1, 1)]}, 2, 1)
    >>> "".join(letter for letter, _ in lines[0])
    '⡠⠊'
    """
    finite = {name: [one for one in points if math.isfinite(one[1])] for name, points in series.items()}
    every = [one for points in finite.values() for one in points]
    letters = [[0] * width for _ in range(height)]
    owners = [[""] * width for _ in range(height)]
    if every:
        left, right = min(x for x, _ in every), max(x for x, _ in every)
        low, high = limits(series)
        for name, points in finite.items():
            dots = [
                (_scaled(x, left, right, 2 * width - 1), 4 * height - 1 - _scaled(y, low, high, 4 * height - 1))
                for x, y in sorted(points)
            ]
            for column, row in _joined(dots):
                letters[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
                owners[row // 4][column // 2] = name
    return [
        [(chr(0x2800 + bits) if bits else " ", owner) for bits, owner in zip(line, names, strict=True)]
        for line, names in zip(letters, owners, strict=True)
    ]


def limits(series: Mapping[str, Points]) -> tuple[float, float]:
    """The lowest and highest value, a little apart where they are equal.

    >>> limits({"a": [(0, 1.0), (1, 3.0)]})
    (1.0, 3.0)
    """
    values = [y for points in series.values() for _, y in points if math.isfinite(y)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _scaled(value: float, low: float, high: float, most: int) -> int:
    return round((value - low) / (high - low) * most) if high > low else 0


def _joined(dots: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every dot on the straight lines between neighbours."""
    found = dots[:1]
    for (x, y), (next_x, next_y) in pairwise(dots):
        steps = max(abs(next_x - x), abs(next_y - y), 1)
        found += [
            (x + round((next_x - x) * part / steps), y + round((next_y - y) * part / steps))
            for part in range(1, steps + 1)
        ]
    return found
