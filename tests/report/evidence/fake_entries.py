"""Made-up claims with made-up numbers; none of them is registered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.report.fakes import HOSTILE
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Section, Source
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.evidence.finding import Finding, Judgement, Verdict, Wording, above, judged
from unsmooth.evidence.interval import Interval, over_seeds
from unsmooth.evidence.ledger import Entry, gpu_minutes
from unsmooth.evidence.records import Record, Store, Trained

INFINITE = math.inf
RULE = {"for_if": "the interval lies above 0", "against_if": "it lies below 0"}
MADE = {
    "commit": "0123456789abcdef",
    "changed": False,
    "hardware": "Made-up GPU",
    "when": "2026-01-02",
    "seconds": 90.0,
}
MEASURED: dict[str, Any] = {"gap": [1.0, 2.0, 3.0], "note": "a < b"}


class FakeClaim(Claim):
    """The gap is above 0."""

    id: ClassVar[str] = "made-up"
    number: ClassVar[int] = 1
    section: ClassVar[Section] = "trained models"
    quote: ClassVar[str] = "Made-up numbers are larger than 0."
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v9", "nowhere")
    reading: ClassVar[str] = "The mean of made-up numbers is above 0."
    differs: ClassVar[str] = "Three numbers."
    stated_scale: ClassVar[bool] = True
    would_decide: ClassVar[str] = "More made-up numbers."
    for_if: ClassVar[str] = RULE["for_if"]
    against_if: ClassVar[str] = RULE["against_if"]
    studies: ClassVar[tuple[str, ...]] = ("made-up-study",)

    def measure(self, bench: Bench) -> dict[str, Any]:
        return dict(MEASURED)

    def judge(self, measured: Mapping[str, Any]) -> Judgement:
        gap = over_seeds(measured["gap"])
        lonely = Finding("a single |number|", Interval(4.0, -INFINITE, INFINITE, 1))
        return judged([Finding("the gap", gap, above(gap)), lonely], f"The gap is {gap.value:.1f}, {measured['note']}.")

    def figure(self, measured: Mapping[str, Any]) -> Figure:
        return Figure("What was made up.", [curves(), names(), many_names()])


class OtherClaim(FakeClaim):
    """Another one, of the other paper, without studies."""

    id: ClassVar[str] = "another"
    number: ClassVar[int] = 2
    section: ClassVar[Section] = "training"
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source("P2", "", "a review")
    stated_scale: ClassVar[bool] = False
    studies: ClassVar[tuple[str, ...]] = ()

    def figure(self, measured: Mapping[str, Any]) -> Figure:
        return Figure("Logarithms.", [logarithms()])


def curves() -> Panel:
    measured = Series("plain", [0, 1, 2, 3], [0.1, 0.3, 0.4, 0.45], [0.05, 0.2, -INFINITE, 0.4], [0.15, 0.4, 0.5, 0.5])
    predicted = Series("plain", [0, 1, 2, 3], [0.1, 0.28, 0.42, 0.5], mark="dashed")
    sharpened = Series("sharpened", [0, 1, 2, 3], [0.1, 0.05, math.nan, 0.01])
    return Panel("By layer", "layer", "mean cosine", [measured, predicted, sharpened], reference=0.0)


def names() -> Panel:
    low = Series("before", ["plain", "sharpen"], [0.1, 0.2], [0.0, 0.1], [0.2, 0.3], mark="points")
    high = Series("after", ["plain", "sharpen"], [0.5, 0.2], [0.4, 0.1], [0.6, 0.3], mark="points")
    return Panel("By variant", "variant", "a quantity whose name is so long that it needs two lines", [low, high])


def many_names() -> Panel:
    places = [f"a variant with a long name {number}" for number in range(5)]
    values = [1.0, 2.0, 3.0, 2.0, 1.0]
    ends = {"low": [0.5 * one for one in values], "high": [1.5 * one for one in values]}
    return Panel(
        "By long names", "variant", "value", [Series("value", places, values, **ends, mark="points")], reference=2
    )


def logarithms() -> Panel:
    x = [10.0**power for power in range(5)]
    falling = Series("falling", x, [1 / one for one in x], [-0.1, 1e-3, 1e-4, 1e-5, 1e-6], [2 / one for one in x])
    gone = Series("gone", x, [1e-2, 1e-3, 0.0, -1.0, 1e-4], mark="dashed")
    return Panel("Falling", "steps", "size", [falling, gone], log_x=True, log_y=True, reference=0.5)


def record(claim: type[Claim], scale: Any = "full", **changes: Any) -> Record:
    """What a claim measured."""
    seeds, measured = (0, 1, 2), {**MEASURED, **changes.pop("measured", {})}
    return Record(claim.id, scale, seeds, changes.pop("rule", RULE), {**MADE, **changes}, measured)


def entry(claim: Claim, found: Record, store: Store) -> Entry:
    """A line of the ledger."""
    return Entry(claim, found, claim.judge(found.measured), gpu_minutes(claim, found, store))


def trained(variant: str, seed: int, state: str = "finished", **changes: Any) -> Trained:
    """A run of the made-up study."""
    evaluations = [
        {"epoch": 1.0, "loss": 2.0, "accuracy": 0.25},
        {"epoch": 2.0, "loss": 1.0, "accuracy": 0.5 + seed / 10},
    ]
    made = {**MADE, "state": state, "seconds": 120.0, "steps": 1000, "parameters": 12345, "side_by_side": 2}
    made["data"] = {"name": "cifar100", "synthetic": False}
    moments = ({"epoch": 0.0, "layers": [0.1, 0.2]}, {"epoch": 2.0, "layers": [0.1, 0.6]})
    kept = tuple(evaluations) if state == "finished" else ()
    return Trained(variant, seed, {}, {**made, **changes}, kept, {"mean_cosine": moments})


def fake_store(folder: Path) -> Store:
    """Runs of the made-up study at two scales, one of them stopped."""
    store = Store(folder)
    store.write_study("made-up-study", "tiny", [trained("plain", 0)])
    runs = [trained("plain", 0), trained("plain", 1), trained("steep", 0), trained("steep", 1, "stopped")]
    store.write_study("made-up-study", "full", runs)
    return store


def fake_entries(store: Store) -> list[Entry]:
    """Confirmed, not supported at a small scale under another rule, undecided, and not run."""
    old = record(
        OtherClaim, "small", rule={**RULE, "against_if": "it was otherwise"}, measured={"gap": [-1.0, -1.1, -0.9]}
    )

    class Third(OtherClaim):
        id: ClassVar[str] = "third"
        number: ClassVar[int] = 3

    class Fourth(OtherClaim):
        id: ClassVar[str] = "fourth"
        number: ClassVar[int] = 4

    return [
        entry(FakeClaim(), record(FakeClaim, measured={"gap": [1.0, 1.1, 1.2]}), store),
        entry(OtherClaim(), old, store),
        entry(Third(), record(Third, measured={"gap": [-1.0, 1.0, 0.0]}), store),
        Entry(Fourth()),
    ]


VERDICTS: list[Verdict] = ["confirmed", "not supported here", "undecided", "undecided"]


class HostileClaim(FakeClaim):
    """Hates its readers."""

    quote: ClassVar[str] = HOSTILE
    source: ClassVar[Source] = Source("P1", HOSTILE, HOSTILE)
    reading: ClassVar[str] = HOSTILE
    differs: ClassVar[str] = HOSTILE
    for_if: ClassVar[str] = HOSTILE

    def figure(self, measured: Mapping[str, Any]) -> Figure:
        series = [Series(HOSTILE, [HOSTILE, "b"], [1.0, 2.0], mark="points"), Series("b", [HOSTILE, "b"], [1.0, 2.0])]
        nothing = Panel("Nothing", "x", "y", [Series("none", [0, 1], [math.nan, math.inf])], reference=1.0)
        return Figure(HOSTILE, [Panel(HOSTILE, HOSTILE, HOSTILE, series), nothing])


def hostile_entry(store: Store) -> Entry:
    """Text that would like to be markup, and a panel without a number."""
    found = record(HostileClaim, measured={"note": HOSTILE}, hardware=HOSTILE)
    return entry(HostileClaim(), found, store)
