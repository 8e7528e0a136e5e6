"""The page of a training in a real browser, opened from disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.conftest import Visit
from tests.report.fakes import HOSTILE
from tests.report.training.fake_runs import LAYERS

pytestmark = pytest.mark.browser
Open = Callable[..., Visit]
CELLS = "[data-board={}] figure:nth-of-type({}) .mark-rect.role-mark path"


def texts(seen: Visit, selector: str) -> list[str]:
    return seen.page.eval_on_selector_all(selector, "found => found.map(one => one.textContent)")


def pick(seen: Visit, board: str, label: str) -> None:
    seen.page.select_option(f"[data-board={board}] [data-pick=choice]", label=label)
    seen.wait()


def test_every_picture_is_drawn_without_network_or_complaint(visit: Open, reports: dict[str, Path]) -> None:
    seen = visit("sweep")
    drawn = "found => found.map(one => one.querySelectorAll('svg').length)"
    assert set(seen.page.eval_on_selector_all("figure .picture", drawn)) == {1}
    for place in (1, 2):
        assert seen.page.locator(CELLS.format("similarity", place)).count() == 6 * (LAYERS + 1)
    assert texts(seen, "[data-board=similarity] h3") == ["no remedy", "sharpen"]
    legend = texts(seen, "[data-board=loss] .role-legend-label text")
    assert legend == ["no remedy", "sharpen", "training", "evaluation"]
    assert seen.requests == [reports["sweep"].as_uri()]
    assert seen.complaints == []


def test_one_choice_moves_both_boards_of_a_metric(visit: Open) -> None:
    seen = visit("one")
    curve = "[data-board=moments] .mark-line path"
    before = seen.page.locator(curve).first.get_attribute("d")
    pick(seen, "similarity", "effective_rank")
    assert seen.page.locator(curve).first.get_attribute("d") != before
    assert (
        seen.page.eval_on_selector("[data-board=moments] select", "one => one.selectedOptions[0].text")
        == "effective_rank"
    )
    assert "effective_rank:" in seen.page.inner_text("[data-board=similarity] .lead")
    assert texts(seen, "[data-board=similarity] .role-legend-title text") == ["effective_rank"]
    assert seen.complaints == []


def test_pictures_can_be_read_as_numbers(visit: Open) -> None:
    seen = visit("one")
    for board in ("similarity", "loss", "quantiles"):
        seen.page.click(f"[data-board={board}] .numbers summary")
    seen.page.wait_for_selector("[data-board=quantiles] .numbers td")
    assert texts(seen, "[data-board=similarity] .numbers thead th") == ["layer", "0", "2", "4"]
    assert texts(seen, "[data-board=similarity] .numbers tbody tr:last-child > *") == ["4", "0.08", "0.39", "0.7"]
    assert texts(seen, "[data-board=loss] .numbers thead th") == ["epoch", "training", "evaluation"]
    assert texts(seen, "[data-board=quantiles] .numbers tbody tr:first-child > *")[:3] == ["0", "−1.4", "−0.9"]


def test_time_can_be_counted_in_steps(visit: Open) -> None:
    seen = visit("one")
    axis = "[data-board=loss] .role-axis-label text"
    assert "4" in texts(seen, axis)
    seen.choose("time", "steps")
    assert "400" in texts(seen, axis)
    assert "step" in texts(seen, "[data-board=optimiser] .role-axis-title text")
    assert seen.complaints == []


def test_more_than_six_variants_are_chosen_one_at_a_time(visit: Open) -> None:
    seen = visit("many")
    assert seen.page.locator("[data-board=similarity] figure").count() == 1
    seen.page.select_option("[data-board=similarity] [data-pick=subject]", label="lr=0.0003")
    seen.wait()
    label = "[data-board=similarity] [role=graphics-document]"
    assert "lr=0.0003" in str(seen.page.locator(label).first.get_attribute("aria-label"))
    assert seen.page.locator("[data-board=loss] .role-legend-label text").count() == 9
    assert seen.complaints == []


def test_hostile_strings_are_text(visit: Open) -> None:
    seen = visit("hostile")
    for place in ("h1", ".sentence", ".manifest", "title"):
        assert HOSTILE in str(seen.page.locator(place).first.text_content()), place
    assert seen.page.locator("img").count() == 0
    assert seen.complaints == []


@pytest.mark.parametrize(("name", "width"), [("sweep", 360), ("hostile", 360), ("many", 1400)])
def test_page_does_not_scroll_sideways(visit: Open, name: str, width: int) -> None:
    seen = visit(name, width=width)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    inside = "found => found.every(one => one.getBoundingClientRect().right <= innerWidth)"
    assert seen.page.eval_on_selector_all(".picture svg, .picture text", inside)


def test_dark_mode_turns_text_and_colours(visit: Open) -> None:
    light, dark = visit("one"), visit("one", color_scheme="dark")
    ink = "getComputedStyle(document.querySelector('.picture .role-axis-label text')).fill"
    assert (light.page.evaluate(ink), dark.page.evaluate(ink)) == ("rgb(27, 31, 36)", "rgb(231, 234, 238)")
    least = CELLS.format("similarity", 1)
    brightness = (
        "one => one.getAttribute('fill').match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0)"
    )
    assert light.page.eval_on_selector(least, brightness) > 600
    assert dark.page.eval_on_selector(least, brightness) < 250
