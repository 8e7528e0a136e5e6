"""One look at a model in training, and the line of a file that it becomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from unsmooth.errors import expected, unknown_name
from unsmooth.scanning.result import Row
from unsmooth.schema import parse


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


@dataclass(frozen=True)
class _Curve:
    metric: str
    site: str
    layer: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    stack: str = ""


@dataclass(frozen=True)
class _Line:
    step: int
    curves: tuple[_Curve, ...]
    seconds: float = math.nan
    sequences: int = 0
    tokens: int = 0


def from_line(line: Mapping[str, Any]) -> Reading:
    """What `Reading.line` wrote; intervals are not in it.

    Raises:
        UnsmoothError: The line is not one.
    """
    names = {field.name for field in fields(_Line)}
    told = parse(_Line, {name: value for name, value in line.items() if name in names}, where="a line of a monitor")
    rows = []
    for curve in told.curves:
        if not len(curve.layer) == len(curve.mean) == len(curve.std) > 0 or min(curve.layer) < 0:
            raise expected("as many numbers as layers in a line of a monitor", "another", "the file as it was")
        for layer, mean, std in zip(curve.layer, curve.mean, curve.std, strict=True):
            numbers = (mean, std, math.nan, math.nan, told.sequences, told.tokens)
            rows.append(Row(layer, curve.site, curve.metric, *numbers, stack=curve.stack))
    return Reading(told.step, tuple(rows), told.seconds)


def _short(value: Any) -> Any:
    """Seven digits are what float32 has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
