"""An explanation in the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.fake_explanations import full_explanation, hostile_explanation, weights_alone
from unsmooth.cli.explain_tables import print_explanation
from unsmooth.explaining.result import Explanation
from unsmooth.explaining.score import best_rule


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Print into a wide terminal and return what came."""
    monkeypatch.setenv("COLUMNS", "200")

    def show(explanation: Explanation, out: Path | None = None) -> str:
        print_explanation(explanation, out)
        return capsys.readouterr().out

    return show


def test_layers_scores_and_sentence_are_printed(printed) -> None:
    text = printed(full_explanation())
    cells = next([part.strip() for part in line.split("│")] for line in text.splitlines() if "│     1 │" in line)
    #                     log(4 / 1.25), σ, mean, rest, measured, predicted by the jacobian, four gains
    numbers = ["1.163", "0.900", "4.000", "1.250", "0.100", "0.0500", "1.500", "1.150", "0.200", "0.100"]
    assert cells[1:-1] == ["1", "smoothing", *numbers]
    assert "predicted:" in text
    assert "jacobian" in text
    assert "0.878" in text
    assert "exponent 0.3 a layer" in text
    assert "three make tokens alike" in text
    assert "note: Attention was taken" in text


def test_columns_without_data_are_left_out(printed) -> None:
    text = printed(weights_alone())
    for word in ("measured", "gain", "predicted", "exponent"):
        assert word not in text.replace("No rule was scored: that needs data.", "")
    assert "No rule was scored" in text


def test_markup_of_users_is_text_and_broken_numbers_are_dashes(printed) -> None:
    text = printed(replace(hostile_explanation(), name="[bold]x[/nope]", notes=("[/red]",)))
    assert "[bold]x[/nope]" in text
    assert "[/red]" in text
    assert "nan" not in text.lower()
    assert "inf" not in text.lower()


def test_place_of_the_files_is_told(printed, tmp_path: Path) -> None:
    assert f"saved in {tmp_path}" in printed(full_explanation(), tmp_path)
    (tmp_path / "report.html").touch()
    assert f"report: {tmp_path / 'report.html'}" in printed(full_explanation(), tmp_path)


def test_best_rule_goes_by_balanced_accuracy() -> None:
    first, second = full_explanation().scores
    assert best_rule([replace(first, accuracy=0.9), replace(second, accuracy=0.8)]).rule == "jacobian"
    one_way = [replace(score, balanced_accuracy=None) for score in (first, second)]
    assert (
        best_rule([replace(one_way[0], accuracy=0.9), replace(one_way[1], accuracy=0.8)]).rule == "extreme_eigenvalue"
    )
    assert best_rule([]) is None
