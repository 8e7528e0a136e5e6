"""An arena as a table and as a page, of runs that nobody trained."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.arena.tiny_arenas import made_up, outcome, plan
from unsmooth.arena import ArenaFolder, Entrant, Standings, standings
from unsmooth.report.arena import (
    arena_plate,
    cells_of,
    findings_of,
    heads_of,
    notes_of,
    sentence_of,
    write_arena_report,
)

SCORES = {"plain": [0.50, 0.52, 0.51], "deescalate": [0.60, 0.63, 0.61], "sharpen": [0.40, 0.70, 0.55]}


@pytest.fixture
def found(tmp_path: Path) -> Standings:
    folder = ArenaFolder(tmp_path)
    wanted = plan("deescalate", "sharpen", "deepnorm", seeds=3, grid=["norm=pre,post"])
    made_up(folder, wanted, SCORES)
    folder.write_trouble(Entrant("norm=pre", "deepnorm"), "refused", "no <b>norm</b> follows", "")
    return standings(wanted, folder)


def test_a_line_says_what_was_found(found: Standings) -> None:
    told = dict(zip(heads_of(found), cells_of(found, found.lines[1]), strict=True))
    assert told == {
        "remedy": "deescalate",
        "model": "norm=pre",
        "rate": "0.01 (edge)",
        "accuracy in % [95 %]": "61.3 [57.5, 65.1]",
        "minus plain in points [95 %]": "10.33 [8.90, 11.77]",
        "verdict": "better",
        "cosine, start → end": "0.210 → 0.410",
        "step time": "1.25×",
        "memory": "3 MiB",
        "failures": "none",
    }
    refused = dict(zip(heads_of(found), cells_of(found, found.lines[3]), strict=True))
    assert (refused["verdict"], refused["failures"], refused["step time"]) == ("–", "refused", "–")
    assert cells_of(found, found.lines[-1])[5] == "not finished"


def test_the_sentence_counts(found: Standings) -> None:
    counts = "Of 6 remedied models, 2 better than plain, 0 worse; no difference shown for 2; 2 without a comparison."
    assert sentence_of(found) == counts
    names = ["norm=pre: better than plain: deescalate; worse than plain: none."]
    assert findings_of(found)[:1] == names
    assert arena_plate(found).notes[:2] == tuple(findings_of(found))
    assert cells_of(found, found.lines[3])[6] == "–"  # a refused one has no cosine, neither at the start nor at the end


def test_how_rates_were_chosen_is_told(tmp_path: Path) -> None:
    folder = ArenaFolder(tmp_path)
    told = {share: " ".join(notes_of(standings(plan(hold_out=share), folder))) for share in (0.0, 0.25)}
    assert "learn from 75 % of the training samples and are judged on the other 25 %" in told[0.25]
    assert "no rate was chosen on the test set" in told[0.25]
    assert "These runs are judged on the test set, as the scores are" in told[0.0]
    assert "judged" not in " ".join(notes_of(standings(plan(rates=(1e-3,)), folder)))


def test_the_page_is_one_file_with_all_of_it(found: Standings, tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the report extra is not installed")
    page = write_arena_report(found, tmp_path)
    assert page is not None
    text = page.read_text(encoding="utf-8")
    assert "default-src &#39;none&#39;" in text
    assert "<script" not in text
    assert "no &lt;b&gt;norm&lt;/b&gt; follows" in text
    assert "Of 4 comparisons of models that do not differ, about 0.2 would be called different." in text
    with (tmp_path / "arena.csv").open(encoding="utf-8") as file:
        drawn = {(row["panel"], row["series"], row["x"]): float(row["y"]) for row in csv.DictReader(file)}
    assert drawn["mean cosine at the end, norm=post", "sharpen", "1"] == pytest.approx(0.41)
    assert drawn["difference to plain, norm=pre", "minus plain", "deescalate"] == pytest.approx(31 / 3)


def test_every_model_has_a_table_of_its_own(found: Standings) -> None:
    tables = arena_plate(found).tables
    assert [table.title for table in tables] == ["All entrants, norm=pre", "All entrants, norm=post"]
    for table in tables:
        assert [line[0] for line in table.lines] == ["plain", "deescalate", "sharpen", "deepnorm"]
        assert "model" not in table.heads
        assert all(len(line) == len(table.heads) for line in table.lines)


def test_curves_share_a_picture_with_as_many_as_there_are_colours(tmp_path: Path) -> None:
    names = [f"deescalate(tau=0.{digit})" for digit in range(1, 9)]
    wanted, folder = plan(*names, seeds=2), ArenaFolder(tmp_path)
    made_up(folder, wanted, {name: [0.5, 0.6] for name in ("plain", *names)})
    panels = [panel for panel in arena_plate(standings(wanted, folder)).figure.panels if "at the end" in panel.title]
    assert [len(panel.series) for panel in panels] == [7, 3]
    assert [panel.title for panel in panels] == ["mean cosine at the end (1 of 2)", "mean cosine at the end (2 of 2)"]
    assert all(panel.series[0].name == "plain" for panel in panels)


def test_curves_of_a_model_are_on_one_scale_and_have_bands_where_no_seed_is_missing(tmp_path: Path) -> None:
    wanted, folder = plan("deescalate", "sharpen", seeds=3), ArenaFolder(tmp_path)
    made_up(folder, wanted, {"plain": [0.5, 0.6, 0.7], "deescalate": [0.5, 0.6, 0.7], "sharpen": [0.5, 0.6]})
    panels = [panel for panel in arena_plate(standings(wanted, folder)).figure.panels if "mean cosine" in panel.title]
    assert [panel.title for panel in panels] == ["mean cosine at the start", "mean cosine at the end"]
    assert panels[0].within == panels[1].within
    assert [[one.low is None for one in panel.series] for panel in panels] == [[False, False, True]] * 2


def test_step_times_of_a_device_that_others_use_too_are_told_to_waver(tmp_path: Path) -> None:
    wanted, told = plan("deescalate", rates=(1e-3,)), {}
    for beside in (1, 6):
        folder = ArenaFolder(tmp_path / str(beside))
        for remedy in wanted.remedies:
            run = outcome(remedy, 0, 0.5, side_by_side=beside)
            folder.write_outcome(Entrant(next(iter(wanted.models)), remedy), "seed-0-rate-0.001", run)
        told[beside] = " ".join(notes_of(standings(wanted, folder)))
    assert "wavers" not in told[1]
    assert "others used the device too, so that it wavers" in told[6]
    assert "up to 6 runs at a time" in told[6]


def test_nothing_is_drawn_before_the_first_run(tmp_path: Path) -> None:
    assert write_arena_report(standings(plan(), ArenaFolder(tmp_path)), tmp_path) is None
