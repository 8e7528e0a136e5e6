"""Metrics that have more behind them than one number per layer: a row of numbers, or one for every two layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from unsmooth.functional._tokens import Tokens


@dataclass(frozen=True)
class Profile:
    """A row of numbers per sequence, such as a spectrum or a histogram; a scan gives its mean over sequences.

    Args:
        function: From what the metric reads, with those of its options that it takes, to (batch, columns).
        columns: From the number of columns to where each lies on the axis.
        title: What the axis is.
        meaning: What a number of the row is.
    """

    function: Callable[..., Tensor]
    columns: Callable[[int], Sequence[float]]
    title: str
    meaning: str


@dataclass(frozen=True)
class LayerPairs:
    """One number per sequence for every two layers.

    Args:
        keep: What of a layer's tokens is kept until the batch is over; its size must not depend on their number.
        compare: From what was kept of two layers to (batch,).
        meaning: What the number is.
    """

    keep: Callable[[Tokens], Tensor]
    compare: Callable[[Tensor, Tensor], Tensor]
    meaning: str
