"""``unsmooth arena`` as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.arena.tiny_arenas import made_up, plan
from tests.cli.test_train import SMALL
from unsmooth.arena import ArenaFolder, Plan, carry_out_arena, standings
from unsmooth.cli import app
from unsmooth.cli.app import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_NOT_FINISHED, run
from unsmooth.cli.arena import _print, _tell
from unsmooth.report.arena import cells_of, heads_of

WORDS = ["arena", "vit_cifar100", *SMALL, "--remedies", "deescalate(tau=0.5),deepnorm", "--rates", "1e-3"]


def test_an_arena_ends_in_a_table_and_a_page_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = [*WORDS, "--seeds", "1", "--out", str(tmp_path)]
    assert run([*words, "--total-budget", "0s"]) == EXIT_NOT_FINISHED
    assert "The same command goes on from there." in capsys.readouterr().err
    # Two processes share what is left.
    assert run([*words, "--processes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plain, tau, deepnorm = found["standings"]
    assert (plain["done"], tau["done"], plain["rate"]) == (True, True, 1e-3)
    assert tau["difference"]["value"] == pytest.approx(tau["scores"]["0"] - plain["scores"]["0"])
    assert deepnorm["failures"][0].startswith("refused: ")
    assert json.loads((tmp_path / "arena.json").read_text())["made"] == found["made"]
    words.remove("--quiet")
    assert run(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "One seed has no interval, so there are no verdicts" in said
    assert "The data are made up" in said
    if found["page"]:
        assert "deescalate(tau=0.5)" in Path(found["page"]).read_text(encoding="utf-8")


def test_results_of_remedies_that_are_not_named_again_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = plan("deescalate", "sharpen"), plan("deescalate")
    folder = ArenaFolder(tmp_path)
    made_up(folder, first, {remedy: [0.5, 0.6] for remedy in first.remedies})
    for wanted, told in ((first, ""), (second, "also has results of vit_cifar100/sharpen. Name all of them for one")):
        _tell(standings(wanted, folder), folder, False, False)
        said = capsys.readouterr().err
        assert told in said
        assert bool(told) == ("also has" in said)


def test_ctrl_c_is_told_and_has_a_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unsmooth.arena.carry_out_arena", interrupted)
    assert run([*WORDS, "--seeds", "1", "--out", str(tmp_path / "out")]) == EXIT_INTERRUPTED
    assert "interrupted. The same command goes on from there." in capsys.readouterr().err


def test_what_is_refused_leaves_earlier_results_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS, "--seeds", "1", "--out", str(tmp_path / "out")]
    assert run(words) == 0
    before = (tmp_path / "out/arena.json").read_bytes()
    for other in (["--set", "batch=4"], ["--budget", "2steps"], ["--rates", "1e-3,1e-2", "--hold-out", "0.001"]):
        for processes in ("1", "2"):
            assert run([*words, *other, "--processes", processes]) == EXIT_BAD_INPUT
            assert (tmp_path / "out/arena.json").read_bytes() == before
    capsys.readouterr()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unsmooth.arena.carry_out_arena", interrupted)
    assert run([*words, "--seeds", "2"]) == EXIT_INTERRUPTED
    assert (tmp_path / "out/arena.json").read_bytes() == before


def test_what_came_to_its_end_before_an_interruption_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: Plan, folder: ArenaFolder, **_: object) -> None:
        carry_out_arena(plan, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr("unsmooth.arena.carry_out_arena", interrupted)
    assert run([*WORDS, "--seeds", "1", "--out", str(tmp_path)]) == EXIT_INTERRUPTED
    assert json.loads((tmp_path / "arena.json").read_text())["standings"][0]["done"]


def test_every_exit_code_is_written_down() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scan.md").read_text(encoding="utf-8")
    told = text.partition("Exit codes: ")[2].partition("\n\n")[0]
    codes = {value for name, value in vars(app).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"(?:^|, |\n)(\d+) ", told)} == {0, *codes}


@pytest.mark.parametrize("width", [80, 110, 200])
def test_no_word_of_the_table_is_broken(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    folder, wanted = ArenaFolder(tmp_path), plan("deescalate(tau=0.5)", "deepnorm", seeds=3, grid=["norm=pre,post"])
    scores = {"plain": [0.5, 0.52, 0.51], "deescalate(tau=0.5)": [0.4, 0.7, 0.55], "deepnorm": [0.61, 0.62, 0.62]}
    made_up(folder, wanted, scores)
    found = standings(wanted, folder)
    _print(found, None)
    *table, rest = capsys.readouterr().out.partition("Every scored run")[0].partition("Not in this width:")
    said, left_out = set(table[0].split()), rest.partition(". The page")[0]
    assert all(len(line) <= width for line in table[0].splitlines())
    shown = [head not in left_out for head in heads_of(found)]
    for cells in (heads_of(found), *(cells_of(found, line) for line in found.lines)):
        assert {word for cell, is_shown in zip(cells, shown, strict=True) if is_shown for word in cell.split()} <= said
    assert bool(left_out) == (width < 110)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["arena", "vit_cifar10o", "--remedies", "sharpen"], "Did you mean"),
        (["arena", "vit_cifar100"], "Missing option '--remedies'"),
        (["arena", "vit_cifar100", "--remedies", "sharpn"], "Did you mean 'sharpen'?"),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--budget", "soon"], "Expected a budget of a run"),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--rates", "1e-3,fast"], "Expected learning rates with"),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--processes", "0"], "Expected --processes of 1 or more"),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--patience", "0"], "Expected --patience above 0"),
        (
            ["arena", "vit_cifar100", "--remedies", "sharpen", "--total-budget", "-1m"],
            "Expected a time for all",
        ),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--total-budget", "9"], "--total-budget 2h, 90m or 30s"),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--engine", "locl"], "Did you mean 'local'"),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--patience", "nan"], "Expected --patience above 0"),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--patience", "inf"], "Expected --patience above 0"),
        ([*WORDS, "--out", "here", "--runs", f"{__file__}/x"], "Expected a writable folder"),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--hold-out", "1"], "Try --hold-out 0.1."),
        (["arena", "vit_cifar100", "--remedies", "sharpen", "--set", "hold_out=0.1"], "Try --hold-out, which runs"),
        ([*WORDS, "--data", "nowhere", "--out", "here"], "Expected data in nowhere"),
        (
            ["batch=32" if word == "batch=8" else word for word in [*WORDS, "--out", "here"]],
            "Expected at least one batch of 32",
        ),
        ([*WORDS, "--rates", "1e-3,1e-2", "--out", "here"], "In an arena: another --hold-out, or --hold-out 0."),
        ([*WORDS, "--remedies", "sharpen(basis=orthgonal)", "--out", "here"], "Try basis='orthogonal'."),
        ([*WORDS, "--set", "norm=pre", "--grid", "norm=pre,post"], "Expected norm by --set or by --grid, one of the"),
        ([*WORDS, "--set", "patch=5"], "Expected patch once but got patch=4 and patch=5."),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == EXIT_BAD_INPUT
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
