"""An explanation in the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.fake_explanations import full_explanation, hostile_explanation, weights_alone
from unsmooth.cli.explain_tables import print_explanation, print_verdicts
from unsmooth.explaining.result import Explanation


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Print into a wide terminal and return what came."""
    monkeypatch.setenv("COLUMNS", "200")

    def show(explanation: Explanation, out: Path | None = None) -> str:
        print_explanation(explanation, out)
        return capsys.readouterr().out

    return show


def test_layers_skills_and_sentence_are_printed(printed) -> None:
    text = printed(full_explanation())
    cells = next([part.strip() for part in line.split("│")] for line in text.splitlines() if "│     1 │" in line)
    #        foretold by T2, measured, log(4 / 1.25), σ, mean, rest, four gains
    numbers = ["0.300", "0.400", "1.163", "0.900", "4.000", "1.250", "1.500", "1.150", "0.200", "0.100"]
    assert cells[1:-1] == ["1", "smoothing", *numbers]
    assert text.startswith("T2, which knows the weights and the layer's statistics, foretells 100% of the directions")
    assert "foretold" in text
    assert "0.88" in text
    assert "exponent 0.3 a layer" in text
    assert "three make tokens alike" in text
    assert "note: Attention was taken" in text


def test_columns_without_data_are_left_out(printed) -> None:
    text = printed(weights_alone())
    for word in ("foretold by", "gain", "exponent", "persistence"):
        assert word not in text
    assert "No tier was scored" in text


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


def test_verdicts_that_lose_to_persistence_are_not_shown(printed) -> None:
    whole = full_explanation()
    *others, verdicts = whole.skills
    text = printed(replace(whole, skills=(*others, replace(verdicts, accuracy=0.2, balanced_accuracy=0.2))))
    assert "smoothing" not in text
    assert "margin  " not in text
    assert "right in 20% of 6 layers (balanced 20%); persistence in 25% (balanced 25%)" in text
    assert "not what it did here, and are not drawn" in text


def test_several_leave_out_the_verdicts_that_do_not_hold(printed, capsys: pytest.CaptureFixture[str]) -> None:
    whole = full_explanation()
    *others, verdicts = whole.skills
    wrong = replace(whole, skills=(*others, replace(verdicts, accuracy=0.2, balanced_accuracy=0.2)))
    print_verdicts({"right": whole, "wrong": wrong}, None)
    line = next(line for line in capsys.readouterr().out.splitlines() if "│     1 │" in line)
    assert [cell.strip() for cell in line.split("│")][2:-1] == ["smoothing", "+1.163", "+0.400", "–", "–", "+0.400"]
