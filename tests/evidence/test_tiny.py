"""Every claim is run at the smallest scale: it measures, judges, draws, and survives the way to disk and back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from unsmooth.evidence import CLAIMS, STUDIES, Bench, Claim, ledger, run_claim
from unsmooth.evidence.finding import Verdict
from unsmooth.evidence.ledger import Entry

WITHOUT_TRAINING = sorted(name for name, claim in CLAIMS.items() if not claim.studies)
WITH_TRAINING = sorted(name for name, claim in CLAIMS.items() if claim.studies)


@pytest.mark.parametrize("name", CLAIMS)
def test_says_what_it_is(name: str) -> None:
    claim = CLAIMS[name]
    assert re.fullmatch(r"[a-z0-9-]+", claim.id)
    assert claim.source.paper in ("P1", "P2")
    assert claim.source.place
    assert claim.reading.endswith(".")
    assert claim.would_decide.endswith(".")
    assert claim.differs.endswith(".") or claim.wording == "ours"
    assert claim.for_if
    assert claim.against_if
    assert claim.for_if != claim.against_if
    assert set(claim.studies) <= set(STUDIES)


def test_there_are_enough_and_each_has_its_place() -> None:
    assert len(CLAIMS) >= 14
    assert len({claim.number for claim in CLAIMS.values()}) == len(CLAIMS)


def test_every_study_serves_a_claim() -> None:
    assert set(STUDIES) == {study for claim in CLAIMS.values() for study in claim.studies}


@pytest.mark.parametrize("name", WITHOUT_TRAINING)
def test_claims_of_mathematics_and_of_models(name: str, tmp_path: Path) -> None:
    check(CLAIMS[name], Bench(scale="tiny", out=tmp_path / "evidence", runs=tmp_path / "runs", device="cpu"))


# In one test, since claims share trained runs.
def test_claims_of_training(tmp_path: Path) -> None:
    bench = Bench(scale="tiny", out=tmp_path / "evidence", runs=tmp_path / "runs", device="cpu")
    for name in WITH_TRAINING:
        check(CLAIMS[name], bench)
    again = {path: path.read_text() for path in bench.out.glob("*/studies/*.json")}
    assert {path.stem for path in again} == set(STUDIES)
    run_claim(WITH_TRAINING[0], bench)
    assert {path: path.read_text() for path in again} == again, "what was trained is not trained again"


def check(claim: Claim, bench: Bench) -> None:
    record = run_claim(claim, bench)
    assert record.seeds == claim.seeds(bench)
    assert record.made["hardware"].startswith("CPU")
    read = bench.store.claim(claim.id, "tiny")
    assert read is not None
    assert json.loads(json.dumps(record.measured)) == read.measured, "what is judged is what is on disk"
    entry = next(entry for entry in ledger(bench.out) if entry.claim is claim)
    assert isinstance(entry, Entry)
    row = entry.to_json()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["verdict"] in get_args(Verdict)
    assert isinstance(row["effect"], float)
    assert row["words"]
    assert row["scale"] == "tiny"
    assert not row["rule_changed_since"]
    check_figure(claim, read.measured)


def check_figure(claim: Claim, measured: object) -> None:
    figure = claim.figure(measured)  # type: ignore[arg-type]
    assert figure.caption
    assert figure.panels
    for panel in figure.panels:
        assert panel.series, panel.title
        for series in panel.series:
            assert len(series.x) == len(series.y) > 0, series.name
            for ends in (series.low, series.high):
                assert ends is None or len(ends) == len(series.x)
