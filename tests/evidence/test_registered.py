"""Results that studies and benchmarks hand over: judged by rules of before, refused where registered otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from unsmooth.errors import UnsmoothError
from unsmooth.evidence import CLAIMS, Store, registered
from unsmooth.evidence.claims.of_trained_models import DECIDES, REGISTERED, take_trained_models
from unsmooth.evidence.interval import at_level, over_seeds
from unsmooth.evidence.ledger import entry_of
from unsmooth.evidence.registered import at_this_level, take_study

MADE = {"commit": "abc", "hardware": "CPU", "seconds": 1.0}


@dataclass(frozen=True)
class Contrast:
    name: str
    side: str
    claim: str = "forced-text-harm"


@dataclass(frozen=True)
class Registration:
    """As much of one as is looked at."""

    digest: str = "0123"
    contrasts: tuple[Contrast, ...] = (
        Contrast("smooth minus plain", "above"),
        Contrast("sharpen minus plain", "above"),
        # The same two configurations may stand for another claim, on another side.
        Contrast("sharpen minus plain", "below", claim="another"),
        Contrast("smooth minus plain", "above", claim="smoothing-helps"),
    )


@pytest.fixture(autouse=True)
def one_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "registered", lambda name: Registration())


def contrast(name: str, value: float | None, half: float = 0.5, claim: str = "forced-text-harm", **more: Any) -> Any:
    ends = {} if value is None else {"value": value, "low": value - half, "high": value + half, "count": 3}
    return {"contrast": name, "claim": claim, "margin": 0.0, **ends, **more}


def text(*rows: Any, **more: Any) -> dict[str, Any]:
    return {"name": "text", "registration": "0123", "contrasts": list(rows), "missing": {}, "claims": {}, **more}


BOTH = "smooth minus plain", "sharpen minus plain"


@pytest.mark.parametrize(
    ("values", "outcome"),
    [((1.0, 2.0), "for"), ((1.0, -2.0), "against"), ((1.0, 0.2), "undecided"), ((0.2, -2.0), "against")],
)
def test_contrasts_decide_on_the_side_that_was_registered(values: tuple[float, float], outcome: str) -> None:
    rows = [contrast(name, value) for name, value in zip(BOTH, values, strict=True)]
    judged = CLAIMS["forced-text-harm"].judge({"study": text(*rows, contrast("other", 9.0, claim="another"))})
    assert judged.outcome == outcome
    assert [one.interval.value for one in judged.findings] == list(values)


def test_without_all_data_there_is_no_verdict_and_it_says_why() -> None:
    edge = contrast(BOTH[1], None, why="the best rate of smooth-6-64 is 3e-05, an end of the ladder", lies=None)
    judged = CLAIMS["forced-text-harm"].judge({"study": text(contrast(BOTH[0], 1.0), edge)})
    assert judged.outcome == "undecided"
    assert judged.words == "No verdict: the best rate of smooth-6-64 is 3e-05, an end of the ladder."
    assert [one.outcome for one in judged.findings] == [None]
    rows = [contrast(name, 1.0) for name in BOTH]
    judged = CLAIMS["forced-text-harm"].judge({"study": text(*rows, missing={"plain-6-64": "not run"})})
    assert (judged.outcome, judged.words) == ("undecided", "No verdict: plain-6-64: not run.")
    assert CLAIMS["forced-text-harm"].judge({"study": text()}).words == "No verdict: nothing was measured for it."


def test_results_of_another_registration_are_not_mixed_in(tmp_path: Path) -> None:
    store, results = Store(tmp_path), text(*[contrast(name, 1.0) for name in BOTH])
    with pytest.raises(UnsmoothError, match="Expected results of the registration text 0123 but got 9999"):
        take_study({**results, "registration": "9999"}, store, MADE)
    assert not list(tmp_path.rglob("*.json"))
    taken = take_study(results, store, MADE)
    assert {record.id for record in taken} == {"forced-text-harm", "deescalation-text"}
    entry = entry_of(CLAIMS["forced-text-harm"], store)
    assert (entry.verdict, entry.record is not None) == ("supported here", True)
    # Registered anew since: what was found no longer counts.
    path = tmp_path / "full/claims/forced-text-harm.json"
    path.write_text(path.read_text().replace("0123", "4567"))
    entry = entry_of(CLAIMS["forced-text-harm"], store)
    assert (entry.verdict, entry.record) == ("undecided", None)
    assert "but got 4567" in entry.missing


def test_a_study_takes_the_place_of_what_ran_before_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    before = Store(Path(__file__).parents[2] / "evidence").claim("smoothing-helps", "full")
    assert before is not None
    store.write_claim(before)
    claim = CLAIMS["smoothing-helps"]
    assert claim.judge(before.measured).outcome == "undecided"
    row = contrast(BOTH[0], 1.0, claim="smoothing-helps")
    take_study({**text(row), "name": "lever"}, store, MADE)
    entry = entry_of(claim, store)
    assert entry.judgement is not None
    assert entry.judgement.outcome == "for"
    assert entry.judgement.findings[1].what.startswith("before the study: accuracy in points")
    # Another study's results, beside numbers that are shared, say nothing here.
    assert entry.record is not None
    other = {**entry.record.measured, "study": {**text(row), "name": "depth"}}
    assert claim.judge(other).outcome == "undecided"


def test_intervals_of_results_can_be_had_at_another_level() -> None:
    values = [1.0, 2.0, 4.0]
    row = over_seeds(values).to_json()
    with at_level(0.99):
        found = at_this_level(row)
    wanted = stats.ttest_1samp(values, 0.0).confidence_interval(0.99)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert at_this_level({"value": 1.0, "low": None, "high": None, "count": 1}).count == 1


def slope(gain: float | str, late: float, shape: str, family: str = "post", overall: float = -1.0) -> dict[str, Any]:
    def around(value: float) -> dict[str, Any]:
        return {"value": value, "low": value - 0.1, "high": value + 0.1, "count": 8}

    halves = {"slope": around(overall), "second_half": around(late), "bound": around(late + 1.0)}
    return {"family": family, "width": 64, "gain": gain, "shape": shape, **halves}


@pytest.mark.parametrize(
    ("shapes", "outcome"),
    [
        (("geometric", "geometric"), "for"),
        (("geometric", "levels off"), "undecided"),
        (("geometric", "does not escalate"), "against"),
    ],
)
def test_rate_looks_at_post_norm_networks_alone(shapes: tuple[str, str], outcome: str) -> None:
    rows = [slope(0.8, -0.5, shapes[0]), slope("xavier", -0.4, shapes[1], overall=0.5)]
    others = [slope(0.16, 0.5, "does not escalate"), slope(0.8, 0.5, "does not escalate", family="pre")]
    results = {"name": "rate", "registration": "0123", "missing": {}, "escalation": [*rows, *others], "claims": {}}
    judged = CLAIMS["rate-in-networks"].judge({"study": results})
    assert judged.outcome == outcome
    assert [one.interval.value for one in judged.findings] == [-0.5, -0.4]
    bound = CLAIMS["bound-in-networks"].judge({"study": results})
    assert bound.outcome == "for"  # −0.5 + 1 and −0.4 + 1
    assert CLAIMS["rate-in-networks"].figure({"study": results}).panels[0].series


@pytest.mark.parametrize(
    ("of", "low", "told", "outcome"),
    [
        ("log_tdiv", 0.1, "log_tdiv", "for"),
        ("gradient_norm", 0.1, "gradient_norm", "against"),
        ("log_tdiv", -0.1, "undecided", "undecided"),
        ("log_tdiv", 0.1, "undecided", "undecided"),  # leads, and is too often wrong
    ],
)
def test_cause_is_for_where_similarity_leads(of: str, low: float, told: str, outcome: str) -> None:
    lead = {"of": of, "over": "change", "value": 0.2, "low": low, "high": 0.3}
    results = {"name": "cause", "registration": "0123", "lead": lead, "claims": {"what decides": told}}
    results |= {"balanced_accuracy": {of: 0.9, "change": 0.7}}
    assert CLAIMS["similarity-causes-failure"].judge({"study": results}).outcome == outcome


# ---- trained models


def row(name: str, values: list[float], **changes: Any) -> dict[str, Any]:
    lineages = {f"model {place}": value for place, value in enumerate(values)}
    return {"id": name, **{key: REGISTERED[name][key] for key in DECIDES}, "lineages": lineages, **changes}


@pytest.mark.parametrize("name", sorted(REGISTERED))
def test_what_was_registered_of_trained_models_decides(name: str, tmp_path: Path) -> None:
    threshold, side = REGISTERED[name]["threshold"], {"above": 1, "below": -1}[REGISTERED[name]["side"]]
    store = Store(tmp_path)
    for shift, outcome in ((0.2, "for"), (-0.2, "against"), (0.0, "undecided")):
        values = [threshold + side * shift + 0.01 * one for one in (-1, 0, 1)]
        (record,) = take_trained_models({"claims": [row(name, values)]}, store, MADE)
        claim = CLAIMS[name]
        judged = claim.judge(record.measured)
        assert judged.outcome == outcome
        assert judged.findings[0].interval.value == pytest.approx(sum(values) / 3)
        assert claim.figure(record.measured).panels[0].reference == threshold
        assert f"{threshold:g}" in claim.for_if
    assert entry_of(CLAIMS[name], store).record is not None


def test_what_was_registered_otherwise_is_left(tmp_path: Path) -> None:
    name = sorted(REGISTERED)[0]
    results = {"claims": [row(name, [1.0, 2.0], threshold=99.0), {"id": "unknown", "lineages": {}}]}
    assert take_trained_models(results, Store(tmp_path), MADE) == []
    assert CLAIMS[name].judge(row(name, [])).outcome == "undecided"
