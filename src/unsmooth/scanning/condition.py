"""Conditions on a scan, for scripts and CI: ``mean_cosine@last>0.95``; in training also ``… for 500 steps``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from unsmooth.errors import UnsmoothError, expected, unknown_name
from unsmooth.functional import parse_metric
from unsmooth.models import Anatomy
from unsmooth.models.host import HOSTS
from unsmooth.scanning.result import Row
from unsmooth.spec import read_leading, shown

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(
    r"^\s*"
    r"(?:@\s*(?:(?P<stack>[A-Za-z_][\w.]*)\s*:\s*)?(?P<layer>first|last|any|\d+)\s*(?::\s*(?P<site>\w+))?)?\s*"
    r"(?P<operator>>=|<=|>|<)\s*(?P<value>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"(?:\s+for\s+(?P<steps>\d+)\s+steps?)?\s*$"
)


class Measured(Protocol):
    """Numbers by layer: a scan, or one look at a model in training."""

    def curve(self, metric: str | None = None, site: str = "residual") -> tuple[Row, ...]:
        """The rows of one metric at one site, by layer."""

    @property
    def parts(self) -> Sequence[Measured]:
        """The same for each stack alone."""

    @property
    def stack(self) -> str:
        """The stack that it is of; nothing where there is only one."""

    @property
    def sites(self) -> Container[str]:
        """Where it was measured."""


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
        stack: The stack of a model that has several; nothing for any of them.
    """

    metric: str
    layer: str
    site: str
    comparison: str
    limit: float
    steps: int = field(default=0, repr=False)
    stack: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str, *, lasting: bool = False) -> Condition:
        """Read ``METRIC[@[STACK:]LAYER[:SITE]] OP NUMBER``; the layer defaults to last, the site to residual.

        With `lasting`, `` for N steps`` may follow.

        >>> Condition.parse("mean_cosine@last>0.95")
        Condition(metric='mean_cosine', layer='last', site='residual', comparison='>', limit=0.95)
        >>> Condition.parse("mean_cosine > 0.95 for 500 steps", lasting=True).steps
        500
        >>> Condition.parse("mean_cosine@decoder:last:cross > 0.95").stack
        'decoder'
        """
        form, hint = "a condition METRIC@LAYER>NUMBER (LAYER: first, last, any or a number)", '"mean_cosine@last>0.95"'
        spec, rest = read_leading(text, form, hint)
        found = _FORM.match(rest)
        if found is None or math.isinf(float(found["value"])):
            raise expected(form, shown(text), hint)
        if found["steps"] is not None and not lasting:
            raise expected("a condition on one scan, which has no steps", repr(text), "it without the `for … steps`")
        metric = parse_metric(str(spec)).name
        site, steps = found["site"] or "residual", int(found["steps"] or 0)
        limit, stack = float(found["value"]), found["stack"] or ""
        return cls(metric, found["layer"] or "last", site, found["operator"], limit, steps, stack)

    def __str__(self) -> str:
        """As it is written.

        >>> print(Condition.parse(" mean_cosine > .95 "), Condition.parse("mean_cosine@decoder:3:cross<1e-3"))
        mean_cosine@last>0.95 mean_cosine@decoder:3:cross<0.001
        >>> print(Condition.parse("mean_cosine@last > 0.99999999"))
        mean_cosine@last>0.99999999
        """
        stack = f"{self.stack}:" if self.stack else ""
        site = f":{self.site}" if self.site != "residual" else ""
        lasting = f" for {self.steps} steps" if self.steps else ""
        limit = short if float(short := f"{self.limit:g}") == self.limit else self.limit
        return f"{self.metric}@{stack}{self.layer}{site}{self.comparison}{limit}{lasting}"

    def check(self, stacks: Sequence[Anatomy], sites: Sequence[str], metrics: Sequence[str]) -> None:
        """Refuse what a scan of these stacks would not measure, before it runs.

        Args:
            stacks: Of the model.
            sites: Where it is to be measured.
            metrics: What is to be measured, by canonical name.
        """
        named = {stack.stack: stack for stack in stacks if stack.stack}
        about = list(stacks)
        if self.stack:
            if not named:
                raise self._no_stack()
            if self.stack not in named:
                raise unknown_name("stack of this model", self.stack, named)
            about = [named[self.stack]]
        if self.site not in sites:
            raise expected(f"a site that is measured ({', '.join(sites)})", repr(self.site), f"--sites {self.site}")
        if self.metric not in metrics:
            raise unknown_name("metric of this scan", self.metric, metrics)
        # Blocks of a known family are called as often as it says; of others nobody knows before they run.
        depth = max(stack.host.depth(stack.blocks) for stack in about)
        if self.layer.isdigit() and int(self.layer) > depth and all(stack.host.name in HOSTS for stack in about):
            raise self._no_layer(0, depth)

    def _no_stack(self) -> UnsmoothError:
        without = replace(self, stack="")
        return expected("no stack, as the model has only one", repr(self.stack), f'"{without}"')

    def _no_layer(self, first: int, last: int) -> UnsmoothError:
        return expected(f"a layer from {first} to {last}", self.layer, f"{self.metric}@last")

    def holds(self, scan: Measured, *, nan: bool = True) -> Row | None:
        """The first row that meets the condition, None where none does; NaN meets every condition if `nan`."""
        for row in (row for curve in self._curves(scan) for row in self._rows(curve)):
            if (nan and math.isnan(row.mean)) or _OPERATORS[self.comparison](row.mean, self.limit):
                return row
        return None

    def _curves(self, scan: Measured) -> list[tuple[Row, ...]]:
        """One for each stack that it is about."""
        if self.stack:
            named = {part.stack: part for part in scan.parts if part.stack}
            if not named:
                raise self._no_stack()
            if self.stack not in named:
                raise unknown_name("stack of this scan", self.stack, named)
            return [named[self.stack].curve(self.metric, self.site)]
        having = [part for part in scan.parts if self.site in part.sites]
        return [part.curve(self.metric, self.site) for part in having or scan.parts]

    def _rows(self, curve: tuple[Row, ...]) -> tuple[Row, ...]:
        if self.layer == "any":
            return curve
        if self.layer in ("first", "last"):
            return curve[:1] if self.layer == "first" else curve[-1:]
        chosen = tuple(row for row in curve if row.layer == int(self.layer))
        if not chosen:
            raise self._no_layer(curve[0].layer, curve[-1].layer)
        return chosen
