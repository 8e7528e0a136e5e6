"""Rows of a scan as series of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unsmooth.evidence.figure import Series

if TYPE_CHECKING:
    from unsmooth.scanning.result import Row


def curve_series(name: str, rows: Sequence[Row], at: Sequence[float] | None = None) -> Series:
    """A curve with its 95 % interval, over layers unless `at` says where the rows lie."""
    places = [float(row.layer) for row in rows] if at is None else list(at)
    low, high = [row.ci_low for row in rows], [row.ci_high for row in rows]
    return Series(name, places, [row.mean for row in rows], low, high)


def through_the_blocks(rows: Sequence[Row]) -> tuple[list[Row], list[float]]:
    """Rows of "residual" and "mid" as one curve through the stream: the middle of block l lies at l − ½.

    Returns:
        The rows in the order of the stream, and where each lies.
    """
    placed = sorted((row.layer - (0.5 if row.site == "mid" else 0.0), row.site, row) for row in rows)
    return [row for *_, row in placed], [at for at, *_ in placed]
