"""From series to rows: gaps, bands, bars, logarithms, names."""

from __future__ import annotations

import math

from tests.report.evidence.fake_entries import curves, logarithms, many_names, names
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.report.evidence.rows import POINTS_OF_A_LINE, axes_of, looks_of, tables_of
from unsmooth.report.series import PALETTE


def tables(panel: Panel) -> dict[str, list[dict[str, object]]]:
    return tables_of(panel, looks_of(Figure("", [panel]), panel))


def test_a_prediction_shares_the_colour_of_what_it_predicts() -> None:
    looks = looks_of(Figure("", [curves()]), curves())
    assert {key: (look.name, look.colour, look.dashed) for key, look in looks.items()} == {
        ("plain", False): ("plain", PALETTE[0], False),
        ("plain", True): ("plain, predicted", PALETTE[0], True),
        ("sharpened", False): ("sharpened", PALETTE[1], False),
    }


def test_a_formula_is_told_by_the_name_that_its_own_begins_with() -> None:
    x, y = [0.0, 1.0], [1.0, 2.0]
    solid = [Series(name, x, y) for name in ("σ = 1", "σ = 1.5", "lazy")]
    dashed = [Series(name, x, y, mark="dashed") for name in ("σ = 1.5, formula", "lazy, one", "lazy, other", "bound")]
    panel = Panel("", "", "", [*solid, *dashed])
    looks = looks_of(Figure("", [panel]), panel)
    assert looks["σ = 1.5, formula", True].colour == looks["σ = 1.5", False].colour
    others = [look.colour for (name, _), look in looks.items() if name != "σ = 1.5, formula"]
    assert len(set(others)) == len(others) == 6  # two of one line could not be told apart


def test_colours_are_those_of_the_figure_unless_there_are_too_many_names() -> None:
    few = [Panel("", "", "", [Series(name, [0.0], [1.0]) for name in names]) for names in ("ab", "ba")]
    many = [Panel("", "", "", [Series(name, [0.0], [1.0]) for name in names]) for names in ("abcde", "fghia")]
    assert looks_of(Figure("", few), few[1])["b", False].colour == PALETTE[1]
    assert [look.colour for look in looks_of(Figure("", many), many[1]).values()] == list(PALETTE[:5])


def test_an_open_end_is_a_gap_in_the_band_and_no_number_a_gap_in_the_line() -> None:
    found = tables(curves())
    assert [(row["low"], row["high"]) for row in found["band"]] == [(0.05, 0.15), (0.2, 0.4), (None, None), (0.4, 0.5)]
    assert [row["y"] for row in found["lines"] if row["line"] == "sharpened"] == [0.1, 0.05, None, 0.01]
    assert {row["line"] for row in found["points"]} == {"plain", "sharpened"}  # what is predicted has no points
    assert len(found["points"]) == 7
    assert found["reference"] == [{"y": 0.0}]
    assert "bars" not in found


def test_names_have_bars_and_stand_at_the_side_where_they_are_long() -> None:
    found = tables(names())
    assert set(found) == {"bars", "points"}
    assert (found["bars"][0]["low"], found["bars"][0]["high"]) == (0.0, 0.2)
    assert (axes_of(names()).names, axes_of(names()).lying, axes_of(names()).apart) == (
        ("plain", "sharpen"),
        False,
        True,
    )
    assert axes_of(many_names()).lying
    assert not axes_of(many_names()).apart


def test_a_logarithmic_axis_shows_what_it_can() -> None:
    found = tables(logarithms())
    assert [row["y"] for row in found["lines"] if row["line"] == "gone"] == [0.01, 0.001, None, None, 0.0001]
    assert found["band"][0]["low"] == 1e-4  # −0.1 ends at the lowest that is drawn
    assert found["band"][1]["low"] == 1e-3
    below = Panel("", "", "", [Series("a", [1, 2], [1.0, 2.0])], log_y=True, reference=0.0)
    assert "reference" not in tables(below)


def test_long_lines_are_thinned_and_whole_numbers_known() -> None:
    long = Panel("", "", "", [Series("a", list(range(5000)), [math.sin(x) for x in range(5000)])])
    rows = tables(long)["lines"]
    assert len(rows) == POINTS_OF_A_LINE
    assert (rows[0]["x"], rows[-1]["x"]) == (0, 4999)
    assert axes_of(long).whole == (0, 4999)
    assert "points" not in tables(long)
    assert axes_of(Panel("", "", "", [Series("a", [0.5, 1.0], [1.0, 2.0])])).whole is None
