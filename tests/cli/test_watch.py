"""`unsmooth watch`: a run in the terminal, on a page, as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.monitor.training import make, train
from unsmooth import Monitor
from unsmooth.cli.app import run
from unsmooth.cli.watch import draw


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("watched") / "run"
    with Monitor(make(), every=1, out=made, name="<mine>", rules=["mean_cosine@last > -2"]) as monitor:
        train(monitor.model, monitor)
    return made


def test_once(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["watch", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "<mine>" in said
    assert "finished" in said
    assert "mean_cosine at residual, step 6" in said
    assert "layer 3: " in said
    assert "alarm at step 1" in said
    assert any("\u2800" < letter <= "\u28ff" for letter in said)


def test_a_folder_above_another_metric_and_the_page(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["watch", str(folder.parent), "--metric", "token_diversity", "--page"]) == 0
    assert "token_diversity at residual" in capsys.readouterr().out
    page = (folder.parent / "live.html").read_text()
    assert "&lt;mine&gt;" in page
    assert 'http-equiv="refresh"' not in page  # it has ended


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["watch", str(folder), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["state"] == "finished"
    assert found["reading"]["step"] == 6
    assert found["events"][0]["kind"] == "alarm"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "a run with monitor.jsonl or log.jsonl"),
        (["{folder}", "--metric", "mean_cosin"], "Did you mean 'mean_cosine at residual'"),
        (["{folder}", "--site", "mlp"], "a known curve of this run"),
        (["{folder}", "--refresh", "0"], "--refresh above 0"),
    ],
)
def test_bad_input_is_one_line(folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert run(["watch", *(word.format(folder=folder) for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_run_of_unsmooth_train(demo_runs: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["watch", str(demo_runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["state"] for one in found} == {"finished"}
    assert all(one["reading"]["curves"] for one in found)


def test_a_straight_line_is_one():
    lines = ["".join(letter for letter, _ in line) for line in draw({"a": [(0, 0.0), (7, 7.0)]}, 4, 2)]
    assert lines == ["  ⡠⠊", "⡠⠊  "]
    assert draw({}, 3, 1) == [[(" ", "")] * 3]
