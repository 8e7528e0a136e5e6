"""How sure a number is: intervals over seeds, and of shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from unsmooth.errors import expected

LEVEL = 0.95
_LEVEL: ContextVar[float] = ContextVar("level", default=LEVEL)


def level() -> float:
    """The level of the intervals that are made: 95 %, or what `at_level` says."""
    return _LEVEL.get()


@contextmanager
def at_level(share: float) -> Iterator[None]:
    """Have all intervals made at another level, as where many of them are to hold together.

    >>> with at_level(0.99):
    ...     print(over_seeds([1.0, 2.0, 3.0]))
    2 [-3.73, 7.73]
    """
    before = _LEVEL.set(share)
    try:
        yield
    finally:
        _LEVEL.reset(before)


@dataclass(frozen=True)
class Interval:
    """A number with the range in which it lies at a level of 95 %.

    Args:
        value: The number.
        low: Lower end; −∞ where nothing is known, as with one seed.
        high: Upper end.
        count: How many independent values it rests on.
    """

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        if math.isinf(self.low) and math.isinf(self.high):
            return f"{self.value:.3g} (no interval from {self.count})"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def to_json(self) -> dict[str, Any]:
        """Plain data; an open end is None."""
        low, high = (None if math.isinf(end) else end for end in (self.low, self.high))
        return {"value": self.value, "low": low, "high": high, "count": self.count}


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean and Student-t interval of one number per seed.

    >>> print(over_seeds([1.0, 2.0, 3.0]))
    2 [-0.484, 4.48]
    >>> print(over_seeds([1.0]))
    1 (no interval from 1)
    """
    from scipy.stats import t

    if not values or not all(map(math.isfinite, values)):
        raise expected("finite numbers, one per seed", list(values), "the runs that failed to be measured again")
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(t.ppf(0.5 + level() / 2, count - 1)) * spread / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Interval:
    """First minus second over the seeds that both have: what seeds share, such as the order of data, drops out.

    >>> print(paired({0: 3.0, 1: 5.0}, {0: 1.0, 1: 3.0, 2: 9.0}))
    2 [2, 2]
    """
    both = sorted(first.keys() & second.keys())
    if not both:
        raise expected("seeds that both have", f"{sorted(first)} and {sorted(second)}", "the same seeds for both")
    return over_seeds([first[seed] - second[seed] for seed in both])


def share(hits: int, of: int) -> Interval:
    """How often something happens, with the exact interval of Clopper & Pearson.

    >>> print(share(100, 100))
    1 [0.964, 1]
    """
    from scipy.stats import beta

    if not 0 <= hits <= of or of == 0:
        raise expected("0 ≤ hits ≤ tries, and a try", f"{hits} of {of}", "counting again")
    tail = (1 - level()) / 2
    low = float(beta.ppf(tail, hits, of - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, of - hits)) if hits < of else 1.0
    return Interval(hits / of, low, high, of)
