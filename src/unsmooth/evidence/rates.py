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


def on_edge(rate: float, grid: Iterable[float]) -> bool:
    """Whether a better rate might lie beyond the grid.

    >>> on_edge(0.001, [0.001, 0.0003]), on_edge(0.0003, [0.001, 0.0003, 0.0001]), on_edge(0.001, [0.001])
    (True, False, False)
    """
    rates = set(grid)
    return len(rates) > 1 and rate in (min(rates), max(rates))
