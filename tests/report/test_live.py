"""The page of a run that is going on."""

from __future__ import annotations

import math
import re
from pathlib import Path

from unsmooth.monitor import Reading, Watched
from unsmooth.report.live import live_html, write_live_page
from unsmooth.scanning.result import Row


def watched(state: str = "running", name: str = "run", values: tuple[float, ...] = (0.0, 0.5, 1.0)) -> Watched:
    readings = tuple(
        Reading(10 * number, tuple(Row(layer, "residual", "mean_cosine", value, 0, 0, 0, 4, 8) for layer in (0, 1)))
        for number, value in enumerate(values)
    )
    return Watched(Path(), name, state, readings, ((10, "alarm", "<b>look</b>"),), ((20, 0.25),))


def test_it_asks_to_be_read_again_while_a_run_goes_on():
    assert '<meta http-equiv="refresh" content="3">' in live_html([watched()], 2.5)
    assert 'http-equiv="refresh"' not in live_html([watched("finished")])


def test_lines_are_where_the_numbers_are():
    (first, second) = re.findall(r'<polyline points="([^"]+)"', live_html([watched()]))
    assert first == second
    places = [tuple(map(float, place.split(","))) for place in first.split()]
    assert [x for x, _ in places] == [66.0, 348.0, 630.0]
    assert [y for _, y in places] == [230.0, 119.0, 8.0]  # 0 at the bottom, 1 at the top


def test_nan_breaks_a_line_and_text_is_only_text():
    page = live_html([watched(name="<script>x</script>", values=(0.1, math.nan, 0.3))])
    assert len(re.findall("<polyline", page)) == 4
    assert "<script" not in page
    assert "&lt;b&gt;look" in page


def test_it_fits_in_a_mail_and_is_written_whole(tmp_path: Path):
    many = watched(values=tuple(math.sin(number / 50) for number in range(5000)))
    path = write_live_page([many], tmp_path / "live.html")
    assert path.stat().st_size < 60_000
    assert [one.name for one in tmp_path.iterdir()] == ["live.html"]
    assert "Nothing has been read yet" in live_html([Watched(Path(), "new", "running")])
