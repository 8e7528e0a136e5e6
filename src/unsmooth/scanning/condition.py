"""Conditions on a scan, for scripts and CI: ``mean_cosine@last>0.95``; in training also ``… for 500 steps``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from unsmooth.errors import expected
from unsmooth.functional import parse_metric
from unsmooth.scanning.result import Row

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(
    r"^\s*(?P<metric>\w+(?:\([^)]*\))?)\s*"
    r"(?:@\s*(?P<layer>first|last|any|\d+)\s*(?::\s*(?P<site>\w+))?)?\s*"
    r"(?P<operator>>=|<=|>|<)\s*(?P<value>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"(?:\s+for\s+(?P<steps>\d+)\s+steps?)?\s*$"
)


class Measured(Protocol):
    """Numbers by layer: a scan, or one look at a model in training."""

    def curve(self, metric: str | None = None, site: str = "residual") -> tuple[Row, ...]:
        """The rows of one metric at one site, by layer."""


@dataclass(frozen=True)
class Condition:
    """A comparison of one number of a scan with a limit.

    Args:
        metric: Metric name, with options where it has some.
        layer: "first", "last", "any" or a layer number.
        site: Site name.
        comparison: One of > >= < <=.
        limit: What to compare with.
        steps: Training steps over which it must hold; 0 for a single look.
    """

    metric: str
    layer: str
    site: str
    comparison: str
    limit: float
    steps: int = field(default=0, repr=False)

    @classmethod
    def parse(cls, text: str, *, lasting: bool = False) -> Condition:
        """Read ``METRIC[@LAYER[:SITE]] OP NUMBER``; the layer defaults to last, the site to residual.

        With `lasting`, `` for N steps`` may follow.

        >>> Condition.parse("mean_cosine@last>0.95")
        Condition(metric='mean_cosine', layer='last', site='residual', comparison='>', limit=0.95)
        >>> Condition.parse("mean_cosine > 0.95 for 500 steps", lasting=True).steps
        500
        """
        found = _FORM.match(text)
        if found is None:
            raise expected(
                "a condition METRIC@LAYER>NUMBER (LAYER: first, last, any or a number)",
                repr(text),
                '"mean_cosine@last>0.95"',
            )
        if found["steps"] is not None and not lasting:
            raise expected("a condition on one scan, which has no steps", repr(text), "it without the `for … steps`")
        metric = parse_metric(found["metric"]).name
        site, steps = found["site"] or "residual", int(found["steps"] or 0)
        return cls(metric, found["layer"] or "last", site, found["operator"], float(found["value"]), steps)

    def holds(self, scan: Measured, *, nan: bool = True) -> Row | None:
        """The first row that meets the condition, None where none does; NaN meets every condition if `nan`."""
        for row in self._rows(scan):
            if (nan and math.isnan(row.mean)) or _OPERATORS[self.comparison](row.mean, self.limit):
                return row
        return None

    def _rows(self, scan: Measured) -> tuple[Row, ...]:
        curve = scan.curve(self.metric, self.site)
        if self.layer == "any":
            return curve
        if self.layer in ("first", "last"):
            return curve[:1] if self.layer == "first" else curve[-1:]
        chosen = tuple(row for row in curve if row.layer == int(self.layer))
        if not chosen:
            raise expected(f"a layer from {curve[0].layer} to {curve[-1].layer}", self.layer, f"{self.metric}@last")
        return chosen
