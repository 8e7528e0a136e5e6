"""What metrics keep that need more than one sequence in one layer at a time: other sequences, or other layers.

Most metrics are a number per sequence and layer, of which a scan keeps sums (`statistics`). A `Gathering` is for the
rest: the same word in many sequences, tokens of different sequences, every two layers, a row of numbers in place of
one. What it keeps does not grow with the data, does not depend on how they are batched, and adds up over processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.functional import BoundMetric, Tokens
from unsmooth.functional._grid import Grid
from unsmooth.scanning.profile import Profile
from unsmooth.scanning.statistics import Place, Summary


@dataclass(frozen=True)
class Seen:
    """One tensor of a batch as a gathering sees it.

    Args:
        place: Where it was seen.
        tokens: Its measured tokens, with the sums that metrics share filled in.
        words_BN: Ids of the same tokens, where there are ids.
        patches: Of images all tokens but those that the model put in front; else `tokens`.
        grid: Height and width of an image in patches, where they fill one.
    """

    place: Place
    tokens: Tokens
    words_BN: Tensor | None = None
    patches: Tokens | None = None
    grid: Grid | None = None

    @property
    def usable_B(self) -> Tensor:
        """Sequences of at least two tokens, free of NaN and Inf here."""
        return (self.tokens.count_B >= 2) & self.tokens.norms_BN.sum(dim=1).isfinite()

    def on_grid(self, metric: BoundMetric) -> dict[str, Any] | None:
        """The metric's options with the grid, its own where it has one; None where there is none."""
        if metric.options.get("grid") is None and self.grid is None:
            return None
        return {"grid": self.grid, **metric.options}


class Gathering(ABC):
    """What is kept for some metrics over all batches.

    A batch counts when it is over: `see` puts aside, `end` adds. So an interrupted scan has whole batches only.
    """

    def __init__(self, metrics: Sequence[BoundMetric]) -> None:
        self.metrics = tuple(metrics)

    @abstractmethod
    def begin(self) -> None:
        """Start a batch; forget what an unfinished one left."""

    @abstractmethod
    def see(self, seen: Seen) -> None:
        """Put aside what is needed of one tensor."""

    @abstractmethod
    def end(self) -> None:
        """Add what was put aside."""

    @abstractmethod
    def state(self) -> Any:
        """What was gathered, in types that can be sent to another process."""

    @abstractmethod
    def merge(self, states: Sequence[Any]) -> None:
        """Become the sum of the states of all processes."""

    def summary(self, metric: BoundMetric, place: Place) -> Summary | None:
        """The number of a metric at a place, None where this gathers none."""
        return None

    def change(self, metric: BoundMetric, first: Place, last: Place) -> Summary | None:
        """How the metric changes between two places, None where this gathers none."""
        return None

    def profiles(self) -> list[Profile]:
        """Rows of numbers by layer."""
        return []

    def notes(self) -> list[str]:
        """What a reader must know."""
        return []

    def missing(self) -> UnsmoothError | None:
        """Why a metric has nothing to gather from this model or data, None where it has."""
        return None
