"""The Why part in a real browser, opened from disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.conftest import Visit
from tests.report.fake_explanations import DEPTH, HEADS, KNOWS, WIDTH
from tests.report.fakes import HOSTILE

pytestmark = pytest.mark.browser
Open = Callable[..., Visit]
# What was measured comes before the verdicts.
FIGURES = ["prediction", "breakdown", "verdicts", "eigenvalues", "attention", "gains", "escalation"]


def choose(seen: Visit, figure: str, label: str) -> None:
    """Choose a panel of a figure of the explanation in view."""
    seen.page.locator(f"article:not([hidden]) [data-figure={figure}] select").select_option(label=label)
    seen.wait()


def caption(seen: Visit, figure: str) -> str:
    return str(seen.page.locator(f"article:not([hidden]) [data-figure={figure}] figcaption").inner_text())


def marks(seen: Visit, figure: str, kind: str) -> list[str]:
    """The shapes and places of a figure's marks."""
    return seen.page.eval_on_selector_all(
        f"article:not([hidden]) [data-figure={figure}] {kind}",
        "found => found.map(one => one.getAttribute('d') + one.getAttribute('transform'))",
    )


@pytest.mark.parametrize("name", ["why", "why-alone"])
def test_all_pictures_stand_without_network_or_complaint(visit: Open, reports: dict[str, Path], name: str) -> None:
    seen = visit(name)
    shown = seen.page.locator("article.why:not([hidden]) figure")
    assert [shown.nth(index).get_attribute("data-figure") for index in range(shown.count())] == FIGURES
    assert seen.page.locator("article.why:not([hidden]) .picture svg").count() == len(FIGURES)
    assert seen.requests == [reports[name].as_uri()]
    assert seen.complaints == []
    assert seen.page.locator("#chart svg").count() == (name == "why")


def test_every_cell_of_the_strip_has_a_sign(visit: Open) -> None:
    seen = visit("why-alone")
    strip = seen.page.locator("[data-figure=verdicts]")
    signs = strip.locator(".mark-text.role-mark text").all_text_contents()
    assert len(signs) == strip.locator(".mark-rect.role-mark path").count() == DEPTH * (HEADS + 1)
    assert signs[:DEPTH] == ["+", "−"] * (DEPTH // 2)
    assert set(signs) == {"+", "−", "=", "?"}
    labels = strip.locator(".role-axis-label text").all_text_contents()
    assert [label for label in labels if not label.isdigit()] == ["whole layer", *(f"head {h}" for h in range(HEADS))]


def test_pointing_at_a_cell_tells_margin_and_reason(visit: Open) -> None:
    seen = visit("why-alone")
    seen.page.locator("[data-figure=verdicts] .mark-rect.role-mark path").nth(DEPTH).hover(force=True)
    seen.page.wait_for_selector("#vg-tooltip-element.visible")
    told = seen.page.inner_text("#vg-tooltip-element")
    assert "Head 0 of layer 1 is sharpening." in told
    assert "0.1671" in told  # log(1.3 / 1.1)


def test_choosing_a_layer_changes_the_cloud_and_units_stay_equal(visit: Open) -> None:
    seen = visit("why-alone")
    before = marks(seen, "eigenvalues", ".cloud_marks path")
    assert len(before) == WIDTH
    choose(seen, "eigenvalues", "layer 2")
    assert marks(seen, "eigenvalues", ".cloud_marks path") != before
    assert "σ = 1" in caption(seen, "eigenvalues")
    box = seen.page.eval_on_selector(
        "[data-figure=eigenvalues] .averaging_marks path", "one => [one.getBBox().width, one.getBBox().height]"
    )
    assert box[0] > 50
    assert box[0] == pytest.approx(box[1], rel=0.01)
    assert seen.complaints == []


def test_choosing_a_tier_and_a_quantity(visit: Open) -> None:
    seen = visit("why-alone")
    # The tier that does best comes first.
    assert "the direction of 100% of 6 layers" in caption(seen, "prediction")
    assert "variance explained 0.878" in caption(seen, "prediction")
    before = marks(seen, "prediction", ".mark-symbol.role-mark path")
    choose(seen, "prediction", "T1")
    assert KNOWS["T1"] in caption(seen, "prediction")
    assert marks(seen, "prediction", ".mark-symbol.role-mark path") != before
    assert len(marks(seen, "attention", ".mark-line path")) == 3  # the mean of the heads, and two kinds of chance
    choose(seen, "attention", "Dobrushin coefficient")
    assert len(marks(seen, "attention", ".mark-line path")) == 1
    assert "Half the largest 1-norm" in caption(seen, "attention")
    assert seen.complaints == []


def test_one_explanation_at_a_time_is_in_view(visit: Open) -> None:
    seen = visit("why")
    shown = seen.page.locator("article.why:not([hidden])")
    assert shown.locator("h3").all_inner_texts() == ["all-MiniLM-L6-v2"]
    seen.page.select_option("#explanation", label="from weights")
    seen.wait()
    assert shown.locator("h3").all_inner_texts() == ["from weights"]
    assert shown.locator(".picture svg").count() == 2
    assert "at σ = 1, since no data gave its own" in caption(seen, "eigenvalues")
    assert shown.get_by_text("No Jacobian was taken").is_visible()
    assert seen.complaints == []


def test_hostile_strings_are_text_and_broken_numbers_are_gaps(visit: Open) -> None:
    seen = visit("why-hostile")
    for place in (".why h3", ".why .sentence", ".why .notes", ".reasons", ".scores"):
        assert HOSTILE in seen.page.locator(place).first.text_content(), place
    assert HOSTILE in seen.page.locator(".manifest").last.text_content()
    assert f"knows {HOSTILE}" in caption(seen, "prediction")
    choose(seen, "eigenvalues", "layer 3")
    assert len(marks(seen, "eigenvalues", ".cloud_marks path")) == 2
    seen.page.locator("[data-figure=verdicts] .mark-rect.role-mark path").nth(DEPTH).hover(force=True)
    seen.page.wait_for_selector("#vg-tooltip-element.visible")
    assert HOSTILE in seen.page.inner_text("#vg-tooltip-element")
    assert seen.page.locator("img").count() == 0
    assert "NaN" not in seen.page.inner_text(".why")
    assert "NaN" not in "".join(marks(seen, "gains", "path"))
    assert len(seen.requests) == 1
    assert seen.complaints == []


@pytest.mark.parametrize("name", ["why", "why-hostile"])
def test_narrow_page_does_not_scroll_sideways(visit: Open, name: str) -> None:
    seen = visit(name, width=400)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 400
    inside = "found => found.every(one => one.getBoundingClientRect().right <= innerWidth)"
    assert seen.page.eval_on_selector_all("article:not([hidden]) .picture svg", inside)


def test_pictures_follow_dark_mode_and_the_width_of_the_window(visit: Open) -> None:
    seen = visit("why-alone", color_scheme="dark")
    label = "getComputedStyle(document.querySelector('[data-figure=gains] .role-axis-label text')).fill"
    assert seen.page.evaluate(label) == "rgb(231, 234, 238)"
    wide = seen.page.locator("[data-figure=gains] svg").bounding_box()["width"]
    seen.page.set_viewport_size({"width": 600, "height": 900})
    seen.until(f"document.querySelector('[data-figure=gains] svg').clientWidth < {wide} - 100")
