"""``unsmooth evidence`` as a user types it, with made-up claims and a made-up study in place of the real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.evidence.test_carrying import Smallest
from tests.report.evidence.fake_entries import FakeClaim, OtherClaim, fake_store, record, trained
from unsmooth.cli.app import run
from unsmooth.errors import expected
from unsmooth.evidence import CLAIMS, STUDIES, Bench, Store


class Needy(OtherClaim):
    """Wants data that is not there."""

    id: ClassVar[str] = "needy"
    number: ClassVar[int] = 3

    def measure(self, bench: Bench) -> dict[str, Any]:
        raise expected("data in data/cifar100", "no such\nfolder", "`unsmooth data get cifar100`")


class Trains(OtherClaim):
    """Draws on the smallest study."""

    id: ClassVar[str] = "trains"
    number: ClassVar[int] = 4
    studies: ClassVar[tuple[str, ...]] = ("smallest",)

    def measure(self, bench: Bench) -> dict[str, Any]:
        gap = [run.accuracy for run in bench.study("smallest")["plain"].values()]
        return {"gap": gap, "note": ", ".join(specimen.name for specimen in bench.specimens)}


class OneSeed(Smallest):
    """One seed is enough here."""

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        return (0,)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    claims = {one.id: one for one in (Trains(), FakeClaim(), OtherClaim(), Needy())}
    monkeypatch.setattr(CLAIMS, "_items", claims)
    monkeypatch.setattr(STUDIES, "_items", {"smallest": OneSeed()})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two claims measured, two not."""
    store = fake_store(tmp_path / "results")
    store.write_claim(record(FakeClaim, measured={"gap": [1.0, 1.1, 1.2]}))
    store.write_claim(record(OtherClaim, "small", rule={"for_if": "else"}, measured={"gap": [-1.0, -1.1, -0.9]}))
    return store.path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_ledger(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evidence", "--results", str(results)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "trained models"
    assert lines[2] == "1 made-up verbatim P1 v9 confirmed 1.1 [0.852, 1.35] full"
    assert lines[3] == "training"
    assert lines[4] == "2 another reconstructed P2 not supported here −1 [−1.25, −0.752] small"
    assert lines[5] == "3 needy reconstructed P2 not run – –"
    assert lines[7] == "4 claims: 1 confirmed, 1 not supported here, 2 not run."


def test_ledger_as_json(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evidence", "--results", str(results), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found] == ["made-up", "another", "needy", "trains"]
    first = found[0]
    assert (first["verdict"], first["seeds"], first["effect"]) == ("confirmed", [0, 1, 2], pytest.approx(1.1))
    assert first["interval"] == pytest.approx([0.8515862, 1.3484138])  # 1.1 ± 4.302653 · 0.1 / √3
    assert (first["wording"], first["section"]) == ("verbatim", "trained models")
    assert first["source"]["version"] == "v9"
    assert first["quote"] == "Made-up numbers are larger than 0."
    assert [row["would_decide"] for row in found] == [None, None, *["More made-up numbers."] * 2]
    assert found[1]["rule_changed_since"]
    assert found[2]["interval"] == [None, None]


def test_results_here_are_taken_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    Store(Path("evidence")).write_claim(record(FakeClaim, "tiny"))
    assert run(["evidence", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["scale"] == "tiny"


def test_show(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evidence", "show", "made-up", "--results", str(results)]) == 0
    text = said(capsys)
    for part in (
        "1 made-up confirmed",
        "Made-up numbers are larger than 0.",
        "P1 v9, nowhere; verbatim",
        "read here as The mean of made-up numbers is above 0.",
        "for it the interval lies above 0",
        "against it it lies below 0",
        "the gap: 1.1 [0.852, 1.35] for",
        "a single |number|: 4 (no interval from 1) reported",
        "commit 0123456789, hardware Made-up GPU, date 2026-01-02, time 1 min 30 s, gpu minutes 4.0",
    ):
        assert part in text
    assert "note:" not in text
    assert run(["evidence", "--results", str(results), "show", "another"]) == 0
    assert "The rule reads otherwise today than when the numbers were taken. It was: for it: else." in said(capsys)
    assert run(["evidence", "show", "needy", "--results", str(results)]) == 0
    assert "Try: unsmooth evidence run needy" in said(capsys)


def test_run_measures_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evidence", "run", "made-up", "--device", "cpu", "--out", "mine"]) == 0
    text = said(capsys)
    assert "1 made-up undecided the gap: 2 [−0.484, 4.48] undecided" in text
    assert "Measured at scale tiny" in text
    assert Store(Path("mine")).claim("made-up", "tiny") is not None
    assert run(["evidence", "run", "another", "--device", "cpu", "--scale", "small", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert Store(Path("evidence")).claim("another", "small") is not None


def test_one_claim_without_data_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evidence", "run", "all", "--device", "cpu", "--total-budget", "0s", "--quiet"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == (
        "unsmooth: needy: Expected data in data/cifar100 but got no such folder. Try `unsmooth data get cifar100`."
    )
    assert told[1].startswith("unsmooth: trains: Expected smallest to be trained in the time given")
    assert len(told) == 2
    assert {path.stem for path in Path("evidence/tiny/claims").iterdir()} == {"made-up", "another"}
    assert run(["evidence", "run", "trains", "--device", "cpu", "--total-budget", "0s", "--quiet"]) == 3


def test_train_goes_on_where_it_stopped_and_tells_of_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evidence", "train", "smallest", "--device", "cpu"]
    assert run([*words, "--total-budget", "0s"]) == 3
    first = capsys.readouterr()
    assert first.out == ""
    assert "goes on from there" in first.err
    assert run([*words, "--variant", "plain", "--seed", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("plain, seed 0: accuracy 0.")
    assert "mean cosine at the last layer" in lines[0]
    assert run([*words, "--look-later"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["plain, seed 0", "sharpen, seed 0"]
    store = Store(Path("evidence"))
    assert [bool(one.looked) for one in store.study("smallest", "tiny")] == [True, False]
    assert run([*words, "--look-only", "--quiet"]) == 0
    assert all(one.looked for one in store.study("smallest", "tiny"))
    # What is trained serves the claim, which no time is left for.
    assert run(["evidence", "run", "trains", "--device", "cpu", "--total-budget", "0s", "--model", "some/model"]) == 0
    assert "some/model." in said(capsys)


def test_a_run_that_stopped_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    kept = trained("plain", 0, state="stopped", done=7)
    Store(Path("evidence")).write_study("smallest", "tiny", [kept])
    assert (
        run(["evidence", "train", "smallest", "--variant", "sharpen", "--total-budget", "0s", "--device", "cpu"]) == 3
    )
    assert "plain, seed 0: stopped after 7 of 1000 steps, mean cosine" in capsys.readouterr().out


def test_page(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("altair", reason="the report extra is not installed")
    assert run(["evidence", "page", "--results", str(results), "--out", "deep/page.html"]) == 0
    assert said(capsys) == "deep/page.html: all claims as a page"
    assert "1.1 [0.852, 1.35]" in Path("deep/page.html").read_text(encoding="utf-8")
    assert run(["evidence", "page", "--results", str(results), "--out", "page.pdf"]) == 2
    assert "ends in .html" in capsys.readouterr().err


def test_lists(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "claims", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["made-up", "another", "needy", "trains"]
    assert run(["ls", "claims"]) == 0
    assert "P2, a review; reconstructed; draws on smallest; unsmooth evidence run trains" in said(capsys)
    assert run(["ls", "studies"]) == 0
    assert said(capsys) == "smallest: next to nothing for trains; unsmooth evidence train smallest"
    Store(results).write_study("smallest", "full", [trained("plain", 0)])
    assert run(["evidence", "studies", "--results", str(results), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["runs"] == {"tiny": 0, "small": 0, "full": 1}
    assert run(["evidence", "studies", "--results", str(results)]) == 0
    assert "smallest next to nothing 0 0 1" in said(capsys)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "madeup"], "Did you mean 'made-up'?"),
        (["run", "anoter"], "Did you mean 'another'?"),
        (["run", "all", "--scale", "ful"], "Expected a known scale but got 'ful'. Did you mean 'full'?"),
        (["run", "all", "--total-budget", "-1m"], "Expected a time for all runs together but got '-1m'."),
        (["train", "smallest", "--processes", "0"], "Expected --processes of 1 or more but got 0."),
        (["train", "smalest"], "Did you mean 'smallest'?"),
        (["train", "smallest", "--variant", "smooth"], "Expected a variant of smallest but got 'smooth'."),
        (["--results", "nowhere"], "Expected a folder of results but got 'nowhere'."),
    ],
)
def test_mistakes_are_told_in_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evidence", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_broken_results_are_told_in_one_line(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "full/claims/made-up.json").write_text('{"format": 1, "id"')
    assert run(["evidence", "--results", str(results)]) == 2
    assert re.match(r"unsmooth: Expected JSON in .*made-up.json' but got .*\. Try .*\n$", capsys.readouterr().err)
