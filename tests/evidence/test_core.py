"""Intervals, rules, results on disk and the ledger, against closed forms and hand-made files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from scipy import stats

from unsmooth.errors import UnsmoothError
from unsmooth.evidence import Bench, Claim, Entry, Finding, Interval, Judgement, Record, Store, Trained, run_claim
from unsmooth.evidence import ledger as ledger_of
from unsmooth.evidence.claim import Section, Source
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.evidence.finding import Wording, above, below, judged, together, within
from unsmooth.evidence.interval import over_seeds, paired, share
from unsmooth.evidence.ledger import gpu_minutes, minutes_of, results_folder
from unsmooth.evidence.records import COMMIT, commit, hardware, made

INFINITE = math.inf


class Counting(Claim):
    """Its numbers are what `measure` is told."""

    id: ClassVar[str] = "counting"
    number: ClassVar[int] = 99
    section: ClassVar[Section] = "our own"
    quote: ClassVar[str] = "Numbers are above 0."
    wording: ClassVar[Wording] = "ours"
    source: ClassVar[Source] = Source("P1", "", "nowhere")
    reading: ClassVar[str] = "Numbers are above 0."
    would_decide: ClassVar[str] = "More numbers."
    for_if: ClassVar[str] = "above"
    against_if: ClassVar[str] = "below"

    def measure(self, bench: Bench) -> dict[str, Any]:
        return {"values": bench.pick([1.0, 2.0], [1 / 3, 1.0], [math.pi * 1e5, 3e5])}

    def judge(self, measured: Mapping[str, Any]) -> Judgement:
        found = over_seeds(measured["values"])
        return judged([Finding("the number", found, above(found))], "Counted.")

    def figure(self, measured: Mapping[str, Any]) -> Figure:
        return Figure("", [Panel("", "", "", [Series("", [0.0], [1.0])])])


# ---- intervals


@pytest.mark.parametrize("values", [[0.1, 0.4], [1.0, 2.0, 4.0], [-3.0, 5.0, 0.25, 7.5, -2.0]])
def test_interval_over_seeds_is_students(values: list[float]) -> None:
    test = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = over_seeds(values)
    assert (found.low, found.high) == pytest.approx((test.low, test.high), rel=1e-12)
    assert (found.value, found.count) == (pytest.approx(sum(values) / len(values)), len(values))


def test_interval_of_two_seeds_by_hand() -> None:
    # t with one degree of freedom is Cauchy's: its 97.5 % quantile is tan(0.475 π) = 12.7062.
    found = over_seeds([0.0, 2.0])
    assert found.high - found.value == pytest.approx(math.tan(0.475 * math.pi), rel=1e-9)


def test_one_seed_knows_nothing_and_no_number_is_refused() -> None:
    assert over_seeds([3.0]) == Interval(3.0, -INFINITE, INFINITE, 1)
    assert over_seeds([3.0]).to_json() == {"value": 3.0, "low": None, "high": None, "count": 1}
    for bad in ([], [1.0, math.nan], [math.inf]):
        with pytest.raises(UnsmoothError, match="Expected finite numbers, one per seed"):
            over_seeds(bad)


def test_pairing_takes_out_what_seeds_share() -> None:
    first, second = {0: 10.0, 1: 20.5, 2: 30.0}, {2: 29.0, 1: 19.0, 0: 9.0, 7: 1e9}
    test = stats.ttest_rel([10.0, 20.5, 30.0], [9.0, 19.0, 29.0]).confidence_interval(0.95)
    found = paired(first, second)
    assert (found.low, found.high, found.count) == (pytest.approx(test.low), pytest.approx(test.high), 3)
    with pytest.raises(UnsmoothError, match="Expected seeds that both have"):
        paired({0: 1.0}, {1: 1.0})


@pytest.mark.parametrize(("hits", "of"), [(0, 7), (7, 7), (3, 10), (199, 200)])
def test_share_is_clopper_and_pearsons(hits: int, of: int) -> None:
    exact = stats.binomtest(hits, of).proportion_ci(0.95, "exact")
    found = share(hits, of)
    assert (found.value, found.low, found.high) == pytest.approx((hits / of, exact.low, exact.high), abs=1e-12)


def test_share_without_hits_by_hand() -> None:
    # None of n: the upper end p has (1 − p)ⁿ = 0.025.
    assert share(0, 20).high == pytest.approx(1 - 0.025 ** (1 / 20))
    for hits, of in ((0, 0), (-1, 3), (4, 3)):
        with pytest.raises(UnsmoothError, match="0 ≤ hits ≤ tries"):
            share(hits, of)


# ---- rules


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.1, 0.2, ("for", "against", "for")),
        (-0.2, -0.1, ("against", "for", "against")),
        (-0.1, 0.1, ("undecided", "undecided", "undecided")),
        (0.0, 1.0, ("undecided", "undecided", "for")),
        (-INFINITE, INFINITE, ("undecided", "undecided", "undecided")),
        (0.9, 1.1, ("for", "against", "undecided")),
        (1.1, 1.2, ("for", "against", "against")),
    ],
)
def test_rules_of_thresholds(low: float, high: float, said: tuple[str, str, str]) -> None:
    one = Interval((low + high) / 2, low, high, 3)
    assert (above(one), below(one), within(one, 0.0, 1.0)) == said


def test_findings_that_say_nothing_do_not_count() -> None:
    one = Interval(1.0, 0.5, 1.5, 3)
    assert judged([Finding("a", one, "for"), Finding("b", one)], "").outcome == "for"
    assert judged([Finding("a", one, "for"), Finding("b", one, "against")], "").outcome == "against"
    assert judged([Finding("a", one)], "").outcome == together([]) == "undecided"
    assert str(Finding("a", one, "for")) == "a 1 [0.5, 1.5]: for"


# ---- results on disk


def record(scale: Any = "tiny", values: tuple[float, ...] = (1.0, 2.0), **changes: Any) -> Record:
    rule = {"for_if": "above", "against_if": "below"}
    about = {"commit": "abc", "hardware": "CPU", "seconds": 1.0}
    return Record("counting", scale, (0, 1), changes.get("rule", rule), about, {"values": list(values)})


def trained(**changes: Any) -> Trained:
    about = {"hardware": "Some GPU", "seconds": 120.0, "side_by_side": 4, **changes}
    return Trained(
        "plain", 0, {"seed": 0}, about, ({"accuracy": 0.5},), {"mean_cosine": ({"epoch": 0, "layers": [1.0]},)}
    )


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write_claim(record())
    assert path == tmp_path / "tiny" / "claims" / "counting.json"
    assert store.claim("counting", "tiny") == record()
    assert store.claim("counting", "full") is None
    assert store.best_claim("another") is None
    store.write_study("some", "small", [trained()])
    assert store.study("some", "small") == [trained()]
    assert store.study("some", "full") == []


def test_what_is_no_number_is_null_on_disk(tmp_path: Path) -> None:
    path = Store(tmp_path).write_claim(record(values=(math.nan, math.inf)))
    assert json.loads(path.read_text())["measured"] == {"values": [None, None]}


@pytest.mark.parametrize("content", ['{"format": 1, "id": "cou', "[]", '{"format": 1, "id": "counting"}', "\x00"])
def test_broken_results_are_told_in_one_line(tmp_path: Path, content: str) -> None:
    store = Store(tmp_path)
    for path, read in (
        (tmp_path / "tiny/claims/counting.json", lambda: store.claim("counting", "tiny")),
        (tmp_path / "tiny/studies/some.json", lambda: store.study("some", "tiny")),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(content)
        with pytest.raises(UnsmoothError, match=r"^Expected .* in '.*\.json' but got .*\. (Try|Known: ).*\.$") as told:
            read()
        assert "\n" not in str(told.value)


def test_results_of_a_later_format_are_refused(tmp_path: Path) -> None:
    path = Store(tmp_path).write_claim(record())
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(UnsmoothError, match="Expected results of format 1 but got format 2"):
        Store(tmp_path).claim("counting", "tiny")


# ---- measuring


def test_a_claim_is_measured_rounded_and_written_with_its_rule(tmp_path: Path) -> None:
    found = run_claim(Counting(), Bench(scale="small", out=tmp_path, device="cpu"))
    assert found == Store(tmp_path).claim("counting", "small")
    assert found.measured == {"values": [0.333333, 1.0]}
    assert found.rule == {"for_if": "above", "against_if": "below"}
    assert found.seeds == (0, 1, 2)
    assert str(found.made["hardware"]).startswith("CPU")
    assert found.made["seconds"] >= 0


def test_a_rule_that_fails_on_its_own_numbers_leaves_no_results(tmp_path: Path) -> None:
    class Failing(Counting):
        def judge(self, measured: Mapping[str, Any]) -> Judgement:
            raise UnsmoothError("no rule")

    with pytest.raises(UnsmoothError, match="no rule"):
        run_claim(Failing(), Bench(out=tmp_path, device="cpu"))
    assert not list(tmp_path.rglob("*.json"))


# ---- the ledger


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger of one claim, whoever else is registered."""
    room = sys.modules[ledger_of.__module__]  # whose name the function itself bears
    monkeypatch.setattr(room, "in_order", lambda: [Counting()])


@pytest.mark.usefixtures("counted")
def test_ledger_takes_the_largest_scale(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert [entry.verdict for entry in ledger_of(tmp_path)] == ["undecided"]
    store.write_claim(record("tiny", (-1.0, -1.1, -0.9)))
    assert [entry.verdict for entry in ledger_of(tmp_path)] == ["not supported here"]
    store.write_claim(record("full", (1.0, 1.1, 0.9)))
    store.write_claim(record("small", (-1.0, 1.0)))
    (entry,) = ledger_of(tmp_path)
    assert entry.record is not None
    assert (entry.record.scale, entry.verdict, entry.rule_changed) == ("full", "supported here", False)
    plain = entry.to_json()
    half = float(stats.t.ppf(0.975, 2)) * 0.1 / math.sqrt(3)
    assert plain["effect"] == pytest.approx(1.0)
    assert plain["interval"] == pytest.approx([1.0 - half, 1.0 + half])
    assert (plain["id"], plain["seeds"], plain["scale"]) == ("counting", [0, 1], "full")
    json.dumps(plain, allow_nan=False)


@pytest.mark.usefixtures("counted")
def test_ledger_says_where_the_rule_was_another(tmp_path: Path) -> None:
    Store(tmp_path).write_claim(record(rule={"for_if": "below", "against_if": "above"}))
    assert [entry.rule_changed for entry in ledger_of(tmp_path)] == [True]
    assert not Entry(Counting()).rule_changed


def test_a_claim_that_was_not_run_is_undecided_without_numbers() -> None:
    plain = Entry(Counting()).to_json()
    assert plain["verdict"] == "undecided"
    assert plain["would_decide"] == "More numbers."
    assert plain["interval"] == [None, None]
    assert (plain["effect"], plain["seeds"], plain["findings"]) == (None, [], [])


def test_results_folder_is_the_one_here_where_it_has_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = results_folder()
    assert elsewhere.name in ("published", "evidence")
    assert elsewhere.is_absolute()
    (tmp_path / "evidence" / "tiny").mkdir(parents=True)
    assert results_folder() == elsewhere  # an empty folder is no results
    Store(Path("evidence")).write_claim(record())
    assert results_folder() == Path("evidence")


def test_gpu_minutes_are_shared_by_runs_side_by_side(tmp_path: Path) -> None:
    class Studied(Counting):
        studies: ClassVar[tuple[str, ...]] = ("some",)

    store = Store(tmp_path)
    store.write_study("some", "tiny", [trained(), trained(seconds=60.0, side_by_side=1), trained(hardware="CPU (x)")])
    assert minutes_of(store.study("some", "tiny")) == pytest.approx(0.5 + 1.0)
    assert gpu_minutes(Studied(), record(), store) == pytest.approx(1.5)
    assert gpu_minutes(Counting(), record(), store) == 0.0  # on a CPU


# ---- provenance


def test_commit_may_be_told_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT, "0123abcd+")
    commit.cache_clear()
    try:
        assert commit() == {"commit": "0123abcd", "changed": True}
        about = made(torch.device("cpu"))
        assert about["commit"] == "0123abcd"
        assert about["hardware"] == hardware(torch.device("cpu"))
        assert len(about["when"]) == len("2026-01-02")
        monkeypatch.setenv(COMMIT, "0123abcd")
        commit.cache_clear()
        assert commit() == {"commit": "0123abcd", "changed": False}
    finally:
        commit.cache_clear()
