"""Which learning rate suits a model: the best of a grid, by runs of a seed of their own that is never scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PROBE_SEED = 100
"""How far their seed lies from the first that is scored: a rate that was lucky has no luck to bring along."""


def best(by_rate: Mapping[float, float], *, more: bool = True) -> float:
    """The rate with the best score; of several, the lowest.

    Args:
        by_rate: Rate to score.
        more: Whether more is better.

    >>> best({0.001: 0.5, 0.0003: 0.5, 0.0001: 0.4}), best({0.001: 0.5, 0.0003: 0.5, 0.0001: 0.4}, more=False)
    (0.0003, 0.0001)
    """
    return max(sorted(by_rate), key=lambda rate: by_rate[rate] if more else -by_rate[rate])


def beyond(rate: float, grid: Iterable[float]) -> float:
    """The next rate past an end of the grid, as far from it as that is from its neighbour; in three digits.

    Args:
        rate: Either end.
        grid: Two rates or more.

    >>> beyond(0.0016, [0.0001, 0.0004, 0.0016]), beyond(0.0001, [0.0001, 0.0004, 0.0016]), beyond(0.001, [0.001, 3e-4])
    (0.0064, 2.5e-05, 0.00333)
    """
    rates = sorted(grid)
    neighbour = rates[1] if rate == rates[0] else rates[-2]
    return float(f"{rate * rate / neighbour:.3g}")


def on_edge(rate: float, grid: Iterable[float]) -> bool:
    """Whether a better rate might lie beyond the grid.

    >>> on_edge(0.001, [0.001, 0.0003]), on_edge(0.0003, [0.001, 0.0003, 0.0001]), on_edge(0.001, [0.001])
    (True, False, False)
    """
    rates = set(grid)
    return len(rates) > 1 and rate in (min(rates), max(rates))
