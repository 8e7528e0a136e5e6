"""One look at a model in training, and the line of a file that it becomes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.scanning.result import Row


@dataclass(frozen=True)
class Reading:
    """How alike tokens were after one step.

    Attributes:
        step: Training steps done.
        rows: The numbers, as in a scan: means over sequences of per-sequence values.
        seconds: What the look cost.
        healthy: False where activations were NaN or Inf.
    """

    step: int
    rows: tuple[Row, ...]
    seconds: float = math.nan
    healthy: bool = True

    def curve(self, metric: str | None = None, site: str = "residual") -> tuple[Row, ...]:
        """The rows of one metric, by default the first, at one site, by layer.

        >>> row = Row(3, "residual", "mean_cosine", 0.5, 0.1, 0.4, 0.6, 8, 64)
        >>> Reading(100, (row,)).curve("mean_cosine")[-1].mean
        0.5
        """
        names = tuple(dict.fromkeys(row.metric for row in self.rows))
        metric = metric or next(iter(names), "")
        if metric not in names:
            raise unknown_name("metric of this reading", metric, names)
        found = tuple(row for row in self.rows if row.metric == metric and row.site == site)
        if not found:
            sites = ", ".join(sorted({row.site for row in self.rows}))
            raise expected(f"a site of this reading ({sites})", repr(site), "a monitor with sites=(…)")
        return found

    def line(self) -> dict[str, Any]:
        """As plain data, a curve for each metric and site."""
        curves: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.rows:
            curve = curves.setdefault(
                (row.metric, row.site), {"metric": row.metric, "site": row.site, "layer": [], "mean": [], "std": []}
            )
            for name in ("layer", "mean", "std"):
                curve[name].append(_short(getattr(row, name)))
        counts = {name: max((getattr(row, name) for row in self.rows), default=0) for name in ("sequences", "tokens")}
        return {"step": self.step, "seconds": _short(self.seconds), **counts, "curves": list(curves.values())}


def from_line(line: Mapping[str, Any]) -> Reading:
    """What `Reading.line` wrote; intervals are not in it.

    Raises:
        UnsmoothError: The line is not one.
    """
    try:
        rows = tuple(row for curve in line["curves"] for row in _rows(curve, line))
        return Reading(int(line["step"]), rows, _number(line.get("seconds")))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UnsmoothError("Expected a line of a monitor's file but got another. Try the file as it was.") from None


def _rows(curve: Mapping[str, Any], line: Mapping[str, Any]) -> Iterable[Row]:
    counts = int(line.get("sequences") or 0), int(line.get("tokens") or 0)
    for layer, mean, std in zip(curve["layer"], curve["mean"], curve["std"], strict=True):
        ends = (math.nan, math.nan)
        yield Row(int(layer), str(curve["site"]), str(curve["metric"]), _number(mean), _number(std), *ends, *counts)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _short(value: Any) -> Any:
    """Seven digits are what float32 has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
