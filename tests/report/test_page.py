"""The page in a real browser, opened from disk."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.conftest import Visit
from tests.report.fakes import HOSTILE, METRICS, SITES

pytestmark = pytest.mark.browser
Open = Callable[..., Visit]


def test_page_draws_without_network_or_complaint(visit: Open, reports: dict[str, Path]) -> None:
    seen = visit("plain")
    assert len(seen.paths()) == 3
    assert seen.page.locator("#chart .mark-area path").count() == 3
    assert seen.page.locator("#chart .mark-symbol.role-mark path").count() == 21
    assert seen.requests == [reports["plain"].as_uri()]
    assert seen.complaints == []


def test_legend_names_every_scan_and_chance_is_labelled(visit: Open) -> None:
    seen = visit("plain")
    assert seen.legend() == ["all-MiniLM-L6-v2", "all-MiniLM-L6-v2, random weights", "GPT-2 small"]
    assert seen.page.locator("#chart .mark-text text", has_text="chance 0").count() == 1
    dashes = seen.page.eval_on_selector_all(
        "#chart .mark-line path", "found => found.map(one => one.getAttribute('stroke-dasharray'))"
    )
    assert dashes.count("6,4") == 1


def test_choosing_a_metric_changes_definition_curve_and_numbers(visit: Open) -> None:
    seen = visit("plain")
    before, numbers = seen.paths(), seen.page.inner_text("#numbers tbody")
    assert METRICS["mean_cosine"].definition in seen.page.inner_text("#facts")
    seen.choose("metric", "mean_cosine(absolute=True)")
    facts = seen.page.inner_text("#facts")
    assert METRICS["mean_cosine(absolute=True)"].definition in facts
    assert "0.0407 (about √(2/πd))" in facts
    assert seen.page.inner_text("#metric-name") == "mean_cosine(absolute=True)"
    assert seen.page.locator("#chart .mark-text text", has_text="chance 0.0407").count() == 1
    assert seen.page.inner_text("#numbers tbody") != numbers
    assert seen.paths() != before
    assert seen.complaints == []


def test_choosing_a_site_changes_its_definition_and_the_curve(visit: Open) -> None:
    seen = visit("plain")
    before = seen.paths()
    seen.choose("site", "attention")
    assert SITES["attention"] in seen.page.inner_text("#facts")
    assert seen.paths() != before
    assert "0.250 ± 0.015" in seen.page.inner_text("#numbers tbody tr:first-child")


def test_site_without_the_metric_is_disabled_and_left_with_a_message(visit: Open) -> None:
    seen = visit("plain")
    seen.choose("site", "attention")
    seen.choose("metric", "dirichlet_energy")
    assert seen.page.locator("#site option:disabled").all_inner_texts() == ["attention"]
    assert seen.page.eval_on_selector("#site", "one => one.selectedOptions[0].text") == "residual"
    assert "was not measured at attention" in seen.page.inner_text("#message")
    assert seen.page.locator("#chart .mark-text.role-mark text").count() == 0  # it has no chance level
    assert seen.complaints == []


def test_keyboard_alone_changes_the_metric(visit: Open) -> None:
    seen = visit("plain")
    seen.page.focus("label[for=metric] select")
    seen.page.keyboard.press("ArrowDown")
    seen.until("document.getElementById('metric-name').textContent.includes('absolute')")


def test_legend_click_picks_and_releases(visit: Open) -> None:
    seen = visit("plain")
    opacity = "found => found.map(one => one.getAttribute('opacity') ?? '1')"
    name = seen.page.locator("#chart .role-legend-label text", has_text="GPT-2 small")
    name.click(force=True)
    seen.until("document.querySelector('#chart .mark-line path[opacity=\"0.06\"]') !== null")
    assert seen.page.eval_on_selector_all("#chart .mark-line path", opacity).count("1") == 1
    name.click(force=True)
    seen.until("document.querySelector('#chart .mark-line path[opacity=\"0.06\"]') === null")


def test_hostile_strings_are_text(visit: Open) -> None:
    seen = visit("hostile")
    for place in ("h1", ".sentence", ".notes", ".confounds", ".manifest", "#facts", "#numbers thead", "title"):
        assert HOSTILE in seen.page.locator(place).first.text_content(), place
    assert HOSTILE in seen.legend()
    seen.page.locator("#chart .mark-symbol.role-mark path").first.hover(force=True)
    seen.page.wait_for_selector("#vg-tooltip-element.visible")
    assert HOSTILE in seen.page.inner_text("#vg-tooltip-element")
    assert seen.page.locator("img").count() == 0
    assert len(seen.requests) == 1
    assert seen.complaints == []


def test_values_that_are_not_finite_are_gaps(visit: Open) -> None:
    seen = visit("hostile")
    seen.choose("metric", "token_similarity")
    broken = [path for path in seen.paths() if path.count("M") == 2]
    assert len(broken) == 1
    assert "NaN" not in "".join(seen.paths())
    assert "–" in seen.page.inner_text("#numbers tbody tr:nth-child(4)")


def test_interruption_is_announced(visit: Open) -> None:
    assert visit("hostile").page.inner_text(".banner").startswith("Interrupted.")
    assert visit("plain").page.locator(".banner").count() == 0


def test_single_sequence_has_no_band_and_no_complaint(visit: Open) -> None:
    seen = visit("single")
    assert seen.page.locator("#chart .mark-area path").count() == 0
    assert len(seen.paths()) == 1
    assert "±" not in seen.page.inner_text("#numbers tbody")
    assert seen.complaints == []


def test_scan_without_numbers_still_opens(visit: Open) -> None:
    seen = visit("empty")
    assert seen.page.inner_text("#message") == "This scan holds no numbers."
    assert seen.complaints == []


@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_narrow_page_does_not_scroll_sideways(visit: Open, name: str) -> None:
    seen = visit(name, width=400)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 400
    inside = "found => found.every(one => one.getBoundingClientRect().right <= innerWidth)"
    assert seen.page.eval_on_selector_all("#chart svg, #chart text", inside)


def test_chart_follows_dark_mode_and_the_width_of_the_window(visit: Open) -> None:
    seen = visit("plain", color_scheme="dark")
    colour = "getComputedStyle(document.querySelector('#chart .role-axis-label text')).fill"
    assert seen.page.evaluate(colour) == "rgb(231, 234, 238)"
    wide = seen.page.locator("#chart svg").bounding_box()["width"]
    seen.page.set_viewport_size({"width": 500, "height": 900})
    seen.until(f"document.querySelector('#chart svg').clientWidth < {wide} - 100")


def test_numbers_and_figure_can_be_downloaded(visit: Open, tmp_path: Path) -> None:
    seen = visit("hostile", accept_downloads=True)
    kept = {}
    for kind in ("csv", "json", "svg", "png"):
        with seen.page.expect_download() as waiting:
            seen.page.click(f"[data-download={kind}]")
        kept[kind] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(kept[kind])
    with kept["csv"].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert kept["csv"].name == "scan.csv"
    assert rows[0]["scan"] == HOSTILE
    assert [rows[0]["mean"], rows[1]["mean"]] == ["0.3", ""]  # an infinite mean has no number
    assert len(rows) == 3 * 7 * 7
    assert kept["svg"].name == "mean_cosine-residual.svg"
    assert kept["png"].read_bytes().startswith(b"\x89PNG")
    assert seen.complaints == []
