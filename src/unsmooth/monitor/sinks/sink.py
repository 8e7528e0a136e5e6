"""What a sink is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsmooth.monitor.reading import Reading
from unsmooth.registry import Registry


@dataclass(frozen=True)
class Card:
    """What a monitor is, for its sinks.

    Args:
        name: What to call the run.
        folder: Where files go.
        step: Step at which it begins; after a resume what was written of later steps is void.
        about: Definitions of the metrics, the model, versions: plain data.
    """

    name: str
    folder: Path
    step: int
    about: Mapping[str, Any]


class Sink:
    """Takes readings somewhere; only the first process has one.

    An error of a sink is told, and the training goes on; after three in a row the sink is left out.
    """

    def open(self, card: Card) -> str:
        """Begin; returns something the user should know, in a line, or nothing."""
        raise NotImplementedError

    def write(self, reading: Reading) -> None:
        """Take a reading."""
        raise NotImplementedError

    def tell(self, step: int, kind: str, text: str) -> None:
        """Take an "alarm" of a rule, or a "note" of trouble."""

    def close(self, state: str) -> None:
        """The end: "finished", or "stopped" by an error."""


SINKS = Registry[type[Sink]]("sink")


def scalars(reading: Reading) -> dict[str, float]:
    """Every finite number by a name that sorts by layer.

    >>> from unsmooth.scanning.result import Row
    >>> scalars(Reading(1, (Row(3, "residual", "mean_cosine", 0.5, 0, 0, 0, 8, 64),)))
    {'mean_cosine/residual/layer_03': 0.5}
    """
    return {
        "/".join(filter(None, (row.metric, row.stack, row.site, f"layer_{row.layer:02d}"))): row.mean
        for row in reading.rows
        if row.mean == row.mean
    }
