"""The page of the evidence in a real browser, opened from disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.conftest import Visit
from tests.report.fakes import HOSTILE

pytestmark = pytest.mark.browser
Open = Callable[..., Visit]


def test_opens_without_network_or_complaint(visit: Open, reports: dict[str, Path]) -> None:
    seen = visit("ledger")
    assert seen.page.locator(".picture svg").count() == 5
    seen.page.click(".ledger a[href='#another']")
    assert seen.page.url.endswith("#another")
    assert [url.partition("#")[0] for url in seen.requests] == [reports["ledger"].as_uri()]
    assert seen.complaints == []


def test_pictures_take_the_colour_of_text(visit: Open) -> None:
    light, dark = visit("ledger"), visit("ledger", color_scheme="dark")
    ink = "getComputedStyle(document.querySelector('.picture .role-axis-label text')).fill"
    assert (light.page.evaluate(ink), dark.page.evaluate(ink)) == ("rgb(27, 31, 36)", "rgb(231, 234, 238)")


@pytest.mark.parametrize(("name", "width"), [("ledger", 360), ("hostile", 360), ("ledger", 1280)])
def test_page_does_not_scroll_sideways(visit: Open, name: str, width: int) -> None:
    seen = visit(name, width=width)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_strings_are_text(visit: Open) -> None:
    seen = visit("hostile")
    assert HOSTILE in str(seen.page.locator(".statement").first.text_content())
    assert seen.page.locator("img").count() == 0
    assert seen.complaints == []


def test_tables_can_be_reached_and_opened_with_the_keyboard(visit: Open) -> None:
    seen = visit("ledger")
    seen.page.focus(".numbers summary")
    seen.page.keyboard.press("Enter")
    assert seen.page.locator(".numbers[open]").count() == 1
    assert seen.page.locator(".numbers[open] td").first.text_content() == "0.1 [0.05, 0.15]"
