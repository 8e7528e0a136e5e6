"""Rules such as ``mean_cosine@last > 0.95 for 500 steps``, and what is done where one holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from unsmooth.errors import expected
from unsmooth.monitor.reading import Reading
from unsmooth.numbers import spoken
from unsmooth.scanning.condition import Condition


@dataclass(frozen=True)
class Alarm:
    """A rule that holds: where, since when, and by what number."""

    step: int
    rule: str
    layer: int
    value: float
    since: int

    @property
    def text(self) -> str:
        """In one line, without its step.

        >>> Alarm(500, "mean_cosine@last > 0.9", 12, 0.951, 100).text
        'mean_cosine@last > 0.9 holds (0.951 at layer 12, since step 100)'
        """
        since = f", since step {self.since}" if self.since < self.step else ""
        return f"{self.rule} holds ({spoken(self.value)} at layer {self.layer}{since})"


Action: TypeAlias = Literal["warn", "stop"] | Callable[[Alarm], object]


@dataclass
class Rule:
    """What to look out for, and what to do then.

    It holds "for N steps" when every look since a step at least N steps ago met the condition; one look is enough
    without. It is told once, and again only after it has ceased to hold. NaN meets no rule.

    Alike tokens are no failure by themselves: a classifier that reads one token, or their mean, may make all of them
    alike and be right. Let a rule stop only what the loss or the metric says is failing too, such as by a function that
    looks at them.

    Args:
        text: ``METRIC[@LAYER[:SITE]] OP NUMBER [for N steps]``; LAYER is first, last, any or a number.
        then: "warn" in one line, "stop" the training, or a function that is called with the `Alarm` in every process.

    Example:
        >>> from unsmooth.scanning.result import Row
        >>> rule = Rule("mean_cosine@last > 0.9 for 100 steps")
        >>> row = Row(3, "residual", "mean_cosine", 0.95, 0, 0, 0, 1, 1)
        >>> [rule.check(Reading(step, (row,))) is not None for step in (50, 100, 150)]
        [False, False, True]
    """

    text: str
    then: Action = "warn"
    condition: Condition = field(init=False)
    _since: int | None = field(default=None, init=False, repr=False)
    _told: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.condition = Condition.parse(self.text, lasting=True)
        if self.then not in ("warn", "stop") and not callable(self.then):
            raise expected('"warn", "stop" or a function to call', repr(self.then), f'Rule({self.text!r}, "stop")')

    @classmethod
    def of(cls, given: str | tuple[str, Action] | Rule) -> Rule:
        """A rule from its text, from text and action, or as it is."""
        if isinstance(given, Rule):
            return given
        if isinstance(given, str):
            return cls(given)
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
            return cls(*given)
        raise expected("a rule as text, or (text, action)", repr(given), '"mean_cosine@last > 0.95 for 500 steps"')

    def check(self, reading: Reading) -> Alarm | None:
        """An alarm where the rule begins to hold with this look."""
        row = self.condition.holds(reading, nan=False)
        if row is None:
            self._since, self._told = None, False
            return None
        self._since = reading.step if self._since is None else self._since
        if self._told or reading.step - self._since < self.condition.steps:
            return None
        self._told = True
        return Alarm(reading.step, self.text, row.layer, row.mean, self._since)
