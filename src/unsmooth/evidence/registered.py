"""Claims that a registered study decides: its rule was written down in the registration, its results come as one file.

A study hands over plain data, ``{"name", "registration", "claims", …}``, the registration being the digest of what was
registered. Results of another registration are refused; where something is missing, or a best rate is still at an end
of its ladder, the study says why, and there is no verdict.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from unsmooth.errors import expected
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import CLAIMS, Claim, Measured
from unsmooth.evidence.figure import Figure, Panel, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Outcome, together
from unsmooth.evidence.grid.registration import registered
from unsmooth.evidence.interval import LEVEL, Interval, level
from unsmooth.evidence.records import Record, Store

STUDY = "study"
"""Where the results of a study stand among what was measured for a claim."""

Results: TypeAlias = Mapping[str, Any]


class Awaiting(Claim):
    """A claim without measurements of its own: it waits for results that others hand over."""

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """Those of what it waits for."""
        return ()

    def measure(self, bench: Bench) -> dict[str, Any]:
        """There is nothing to measure here."""
        raise expected(
            f"results of {self.waits_for} for {self.id}", "none yet", "`make evidence-page` once they are there"
        )


def contrasts(results: Results, asks: str) -> Iterator[Finding]:
    """Differences between two configurations over seeds, on the side of their margin that was registered."""
    known = getattr(registered(str(results["name"])), "contrasts", None) or ()
    sides = {contrast.name: contrast.side for contrast in known if contrast.claim == asks}
    for row in results.get("contrasts", ()):
        if row.get("claim") == asks and row.get("value") is not None:
            interval = at_this_level(row)
            found = "above" if interval.low > row["margin"] else "below" if interval.high <= row["margin"] else None
            outcome: Outcome = "undecided" if found is None else "for" if found == sides[row["contrast"]] else "against"
            yield Finding(str(row["contrast"]), interval, outcome)


class Studied(Awaiting):
    """A claim that one registered study decides.

    Attributes:
        study: Name of the registration.
        asks: What its results call this claim.
    """

    study: ClassVar[str]
    asks: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.waits_for = f"the registered study {cls.study}"

    def findings(self, results: Results) -> Iterator[Finding]:
        """Its intervals: of contrasts, unless the study has others for it."""
        return contrasts(results, self.asks)

    def judge(self, measured: Measured) -> Judgement:
        """As the study's rule says."""
        check_registration(measured[STUDY])
        return judge_study(measured[STUDY], self.asks, self.findings(measured[STUDY]))

    def figure(self, measured: Measured) -> Figure:
        """Its intervals side by side."""
        caption = f"What the study {self.study} measured, with 95 % intervals."
        return Figure(caption, [draw_study(measured[STUDY], self.asks, self.findings(measured[STUDY]))])


def draw_study(results: Results, asks: str, findings: Iterable[Finding]) -> Panel:
    """The intervals of a claim side by side."""
    found = list(findings)
    series = with_intervals(asks, [one.what for one in found], [one.interval for one in found], "points")
    return Panel(f"study {results['name']}", "", "estimate", [series] if found else [], reference=0.0)


def judge_study(results: Results, asks: str, findings: Iterable[Finding], also: Sequence[Finding] = ()) -> Judgement:
    """What a study says about one of its claims.

    Args:
        results: Its results.
        asks: The claim's name there.
        findings: The claim's intervals.
        also: What to report beside them.
    """
    found = list(findings)
    lacking = [f"{piece}: {lacks}" for piece, lacks in (results.get("missing") or {}).items()]
    rows = [row for row in results.get("contrasts", ()) if row.get("claim") == asks]
    why = [*dict.fromkeys([*lacking, *(str(row["why"]) for row in rows if row.get("why"))])]
    if why or not found:
        reported = [Finding(one.what, one.interval) for one in found]
        words = f"No verdict: {'; '.join(why) or 'nothing was measured for it'}."
        return Judgement((*reported, *also), words, "undecided")
    outcome = together(one.outcome for one in found if one.outcome is not None)
    return Judgement((*found, *also), f"The study {results['name']} was run in full.", outcome)


class AlsoStudied(Claim):
    """A claim with runs of before its study: the study decides where it was run, and they are reported beside it.

    Measurements that are shared with another claim may hold the results of that one's study, which are not looked at.
    """

    study: ClassVar[str]
    asks: ClassVar[str]

    @abstractmethod
    def judge_before(self, measured: Measured) -> Judgement:
        """What the earlier runs say."""

    @abstractmethod
    def figure_before(self, measured: Measured) -> Figure:
        """What they look like."""

    def judge(self, measured: Measured) -> Judgement:
        """The study's word, else that of the earlier runs."""
        results = self._results(measured)
        before = self.judge_before(measured) if measured.keys() - {STUDY} else None
        if results is None:
            return before or Judgement((), "Nothing was measured.", "undecided")
        also = [Finding(f"before the study: {one.what}", one.interval) for one in (before.findings if before else ())]
        return judge_study(results, self.asks, contrasts(results, self.asks), also)

    def figure(self, measured: Measured) -> Figure:
        """The study's intervals before what the earlier runs look like."""
        results = self._results(measured)
        before = self.figure_before(measured) if measured.keys() - {STUDY} else None
        panels = [] if results is None else [draw_study(results, self.asks, contrasts(results, self.asks))]
        return Figure(before.caption if before else "", [*panels, *(before.panels if before else ())])

    def _results(self, measured: Measured) -> Results | None:
        results: Results | None = measured.get(STUDY)
        if results is None or results["name"] != self.study:
            return None
        check_registration(results)
        return results


def check_registration(results: Results) -> None:
    """Refuse results of another registration than the one that is here.

    Raises:
        UnsmoothError: They are.
    """
    name = str(results.get("name"))
    if results.get("registration") != (digest := registered(name).digest):
        got = str(results.get("registration"))[:40]
        raise expected(f"results of the registration {name} {digest}", got, "running the study again")


def take_study(results: Results, store: Store, made: Mapping[str, Any]) -> list[Record]:
    """Write what a study found beside every claim that it decides.

    Args:
        results: Of the study.
        store: Where records are.
        made: What made them: commit, hardware, versions, when, seconds.
    """
    check_registration(results)
    taken = []
    for claim in CLAIMS.values():
        if getattr(claim, "study", None) == results.get("name"):
            before = claim.record(store)
            measured = {**(before.measured if before else {}), STUDY: dict(results)}
            record = Record(claim.id, "full", before.seeds if before else (), claim.rule, made, measured)
            claim.judge(record.measured)
            store.write_claim(record)
            taken.append(record)
    return taken


def at_this_level(row: Mapping[str, Any]) -> Interval:
    """An interval of 95 % over seeds, as it would be at the level of now.

    >>> at_this_level({"value": 2.0, "low": 1.0, "high": 3.0, "count": 3})
    Interval(value=2.0, low=1.0, high=3.0, count=3)
    """
    from scipy.stats import t

    value, low, high, count = (row[name] for name in ("value", "low", "high", "count"))
    if low is None or high is None:
        return Interval(value, float("-inf"), float("inf"), count)
    if level() == LEVEL or count < 2:
        return Interval(value, low, high, count)
    wider = float(t.ppf(0.5 + level() / 2, count - 1) / t.ppf(0.5 + LEVEL / 2, count - 1))
    return Interval(value, value - wider * (value - low), value + wider * (high - value), count)
