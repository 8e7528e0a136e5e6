"""One look at a model in training, and the line of a file that it becomes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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

    @property
    def stack(self) -> str:
        """The stack that all rows are of; nothing where there are several, or it has no name."""
        names = {row.stack for row in self.rows}
        return names.pop() if len(names) == 1 else ""

    @property
    def sites(self) -> tuple[str, ...]:
        """Where it was measured."""
        return tuple(dict.fromkeys(row.site for row in self.rows))

    @property
    def parts(self) -> tuple[Reading, ...]:
        """The same for each stack of the model alone."""
        names = dict.fromkeys(row.stack for row in self.rows)
        return tuple(replace(self, rows=tuple(row for row in self.rows if row.stack == name)) for name in names)

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
        curves: dict[tuple[str, str, str], dict[str, Any]] = {}
        for row in self.rows:
            named = {"metric": row.metric, "site": row.site} | ({"stack": row.stack} if row.stack else {})
            curve = curves.setdefault((row.metric, row.site, row.stack), {**named, "layer": [], "mean": [], "std": []})
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
        place = (int(layer), str(curve["site"]), str(curve["metric"]))
        yield Row(*place, _number(mean), _number(std), math.nan, math.nan, *counts, stack=str(curve.get("stack", "")))


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _short(value: Any) -> Any:
    """Seven digits are what float32 has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
