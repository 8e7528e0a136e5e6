"""Scores, differences and verdicts of runs that nobody trained, against scipy and by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from tests.arena.tiny_arenas import made_up, outcome, plan
from unsmooth.arena import ArenaFolder, Entrant, Plan, Standing, plan_arena, standings
from unsmooth.arena.results import guessing
from unsmooth.report.arena import cells_of, heads_of, notes_of, sentence_of
from unsmooth.training import recipe

PLAIN, BETTER, NOISY = [0.50, 0.52, 0.51], [0.60, 0.63, 0.61], [0.40, 0.70, 0.55]
MODEL = "vit_cifar100"


def lines(folder: ArenaFolder, **changes: object) -> dict[str, Standing]:
    wanted = plan("deescalate", "sharpen", seeds=3, **changes)
    made_up(folder, wanted, {"plain": PLAIN, "deescalate": BETTER, "sharpen": NOISY})
    return {line.entrant.remedy: line for line in standings(wanted, folder).lines}


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    found = lines(ArenaFolder(tmp_path))
    for remedy, scores in (("deescalate", BETTER), ("sharpen", NOISY)):
        expected = stats.ttest_rel(scores, PLAIN).confidence_interval(0.95)
        gap = found[remedy].difference
        assert gap is not None
        assert (gap.low, gap.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    alone = stats.ttest_1samp(BETTER, 0.0).confidence_interval(0.95)
    score = found["deescalate"].score
    assert score is not None
    assert (score.low, score.high) == pytest.approx((alone.low, alone.high), rel=1e-9)
    assert [found[name].verdict for name in ("plain", "deescalate", "sharpen")] == ["", "better", "no difference shown"]
    assert found["plain"].difference is None


def test_less_may_be_better(tmp_path: Path) -> None:
    """The made-up loss is 1 − accuracy, so that the verdicts are the same and rates are chosen likewise."""
    found = lines(ArenaFolder(tmp_path), score="loss")
    assert found["deescalate"].verdict == "better"
    gap = found["deescalate"].difference
    assert gap is not None
    assert gap.value == pytest.approx(-0.31 / 3)
    choice = found["deescalate"].choice
    assert choice is not None
    assert (choice.rate, choice.edge) == (1e-2, True)  # the made-up accuracy of a rate is the rate


def test_curves_are_means_over_seeds(tmp_path: Path) -> None:
    line = lines(ArenaFolder(tmp_path))["sharpen"]
    assert [one.value for one in line.start] == pytest.approx([0.11, 0.21])
    assert [one.value for one in line.end] == pytest.approx([0.31, 0.41])


def test_a_run_that_lost_its_numbers_counts_as_guessing_and_is_told(tmp_path: Path) -> None:
    folder = ArenaFolder(tmp_path)
    lines(folder)
    lost = outcome("sharpen", 1, 0.9, rate=1e-2, state="stopped", done=2, steps=3, reason="loss not finite in step 2")
    folder.write_outcome(Entrant(MODEL, "sharpen"), "seed-1-rate-0.01", lost)
    line = standings(plan("deescalate", "sharpen", seeds=3), folder).lines[2]
    assert line.scores == {0: 0.40, 1: 0.25, 2: 0.55}
    assert line.failures == ("seed 1 stopped: loss not finite in step 2, noticed after 2 of 3 steps",)
    assert [one.value for one in line.end] == pytest.approx([0.31, 0.41])  # of seeds 0 and 2


def test_one_seed_has_no_interval_and_no_verdict(tmp_path: Path) -> None:
    folder, wanted = ArenaFolder(tmp_path), plan("deescalate", "sharpen", seeds=1)
    made_up(folder, wanted, {"plain": [0.1], "deescalate": [0.9], "sharpen": [0.2]})
    found = standings(wanted, folder)
    line = found.lines[1]
    assert line.verdict == ""
    assert line.to_json()["difference"] == {"value": pytest.approx(0.8), "low": None, "high": None, "count": 1}
    assert line.to_json()["verdict"] is None
    cells = dict(zip(heads_of(found), cells_of(found, line), strict=True))
    assert (cells["accuracy in %"], cells["minus plain in points"], cells["verdict"]) == ("90.0", "80.00", "–")
    assert sentence_of(found) == "2 remedied models, one seed each: no interval, so no verdict."
    notes = " ".join(notes_of(found))
    assert "One seed has no interval" in notes
    assert "Student" not in notes
    assert "called different" not in notes


def test_a_first_seed_of_several_is_no_verdict_yet(tmp_path: Path) -> None:
    folder, wanted = ArenaFolder(tmp_path), plan(seeds=3)
    made_up(folder, wanted, {"plain": PLAIN, "deescalate": BETTER[:1]})
    found = standings(wanted, folder)
    assert found.lines[1].verdict == ""
    assert sentence_of(found).endswith("no difference shown for 0; 1 without a comparison.")


def test_what_is_missing_is_missing_and_the_rest_is_json(tmp_path: Path) -> None:
    folder, wanted = ArenaFolder(tmp_path), plan("deescalate", "sharpen", seeds=3)
    made_up(folder, wanted, {"plain": PLAIN, "deescalate": BETTER[:1]})
    found = standings(wanted, folder)
    assert [line.done for line in found.lines] == [True, False, False]
    found.write(folder)
    written = json.loads((tmp_path / "arena.json").read_text())
    assert written["standings"][1]["step_time_over_plain"] == 1.25
    assert written["standings"][1]["memory_bytes"] == 3 * 2**20
    assert written["standings"][2]["score"] is None
    assert written["models"][MODEL]["settings"]["network"]["depth"] == 1
    assert (written["made"]["hardware"], written["made"]["runs"]) == (["CPU"], 8)
    assert written["hold_out_of_rates"] == 0.1


def of_text(folder: ArenaFolder, wanted: Plan, remedy: str, bits: list[float | None], tokenizer: str = "bpe") -> None:
    """Runs on a text whose tokens have two bytes on average; None for one that lost its numbers."""
    config = {"network": {"vocabulary": 256}, "data": {"tokenizer": tokenizer}, "optimiser": {"lr": 1e-3}}
    for seed, value in enumerate(bits):
        lines = () if value is None else ({"loss": 2.0 * math.log(2) * value, "bits_per_character": value},)
        state = {"state": "stopped", "reason": "loss not finite in step 1"} if value is None else {}
        run = replace(outcome(remedy, seed, 0.0, **state), config=config, evaluations=lines)
        folder.write_outcome(Entrant("xl_wt103", remedy), f"seed-{seed}-rate-0.001", run)


@pytest.mark.parametrize(("tokenizer", "guess"), [("bytes", 8.0), ("bpe", 4.0)])
def test_a_language_model_that_lost_its_numbers_counts_as_guessing(
    tmp_path: Path, tokenizer: str, guess: float
) -> None:
    folder = ArenaFolder(tmp_path)
    wanted = plan_arena(recipe("xl_wt103", "tiny"), ["deescalate"], rates=(1e-3,))
    assert wanted.score == "bits_per_character"
    of_text(folder, wanted, "plain", [2.0, 2.1, 2.2], tokenizer)
    of_text(folder, wanted, "deescalate", [1.0, 1.1, None], tokenizer)
    found = standings(wanted, folder)
    assert found.lines[1].scores == pytest.approx({0: 1.0, 1: 1.1, 2: guess})
    assert (found.lines[1].guessed, found.lines[1].verdict) == ((2,), "no difference shown")
    notes = " ".join(notes_of(found))
    assert "counts with the score of guessing" in notes
    assert "Student's over 3 seeds" in notes


def test_without_a_known_score_of_guessing_there_is_no_verdict(tmp_path: Path) -> None:
    folder = ArenaFolder(tmp_path)
    wanted = plan_arena(recipe("xl_wt103", "tiny"), ["deescalate"], rates=(1e-3,))
    of_text(folder, wanted, "plain", [2.0, 2.1, 2.2])
    of_text(folder, wanted, "deescalate", [1.0, 1.1, None])
    for file in tmp_path.glob("results/*/*/seed-*.json"):  # a loss that tells nothing about the tokens
        content = json.loads(file.read_text())
        content["evaluations"] = [{**line, "loss": None} for line in content["evaluations"]]
        file.write_text(json.dumps(content))
    found = standings(wanted, folder)
    line = found.lines[1]
    assert (line.verdict, line.guessed, line.done, sorted(line.scores)) == ("", (), True, [0, 1])
    assert line.failures[1].startswith("no verdict: which bits_per_character guessing has is not known here")
    notes = " ".join(notes_of(found))
    assert "score of guessing" not in notes
    assert "Student's over those of 3 seeds that count, 2 or more" in notes
    assert cells_of(found, line)[4] == "–"  # nothing more will come


def test_an_accuracy_of_answers_is_not_guessed_from_the_words_of_the_network() -> None:
    assert guessing({"task": "superglue", "network": {"vocabulary": 32_768}}, "accuracy") is None


def test_a_verdict_rests_on_all_seeds(tmp_path: Path) -> None:
    wanted = plan(seeds=3)
    for number, (plain, remedied) in enumerate([(PLAIN, BETTER[:2]), (PLAIN[:2], BETTER)]):
        folder = ArenaFolder(tmp_path / str(number))
        made_up(folder, wanted, {"plain": plain, "deescalate": remedied})
        found = standings(wanted, folder)
        line = found.lines[1]
        assert line.difference is not None
        assert (line.difference.count, line.difference.low > 0, line.verdict) == (2, True, "")
        cells = dict(zip(heads_of(found), cells_of(found, line), strict=True))
        assert cells["verdict"] == "not finished"
        assert sentence_of(found).endswith("no difference shown for 0; 1 without a comparison.")
        assert "would be called different" not in " ".join(notes_of(found))
