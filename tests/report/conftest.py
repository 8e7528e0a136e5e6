"""One browser for all tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.report.fake_explanations import full_explanation, hostile_explanation, weights_alone
from tests.report.fakes import full_scan, hostile_scan, plain_scan
from unsmooth.report import write_report

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")


@dataclass
class Visit:
    """An open page and everything it said or asked for."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def wait(self) -> None:
        """Wait until all charts stand."""
        ready = "html[data-ready=true]:not([data-why=false])"
        self.page.wait_for_selector(ready, timeout=15_000, state="attached")

    def choose(self, select: str, label: str) -> None:
        """Choose from a list and wait for the new chart."""
        self.page.select_option(f"#{select}", label=label)
        self.wait()

    def until(self, condition: str) -> None:
        """Ask until `condition` holds; the page's policy forbids the eval of `page.wait_for_function`."""
        for _ in range(100):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"waited in vain for {condition}")

    def paths(self) -> list[str]:
        """The shapes of the drawn lines."""
        return self.page.eval_on_selector_all(
            "#chart .mark-line path", "found => found.map(one => one.getAttribute('d'))"
        )

    def legend(self) -> list[str]:
        """The names in the legend."""
        return self.page.eval_on_selector_all(
            "#chart .role-legend-label text", "found => found.map(one => one.textContent)"
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    named = os.environ.get("UNSMOOTH_BROWSER")
    found = named or next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(_BROWSERS)} is on PATH and UNSMOOTH_BROWSER is not set")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=found, args=list(_ARGUMENTS))
        yield running
        running.close()


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages on disk: ordinary, hostile, without intervals, without numbers; with explanations, and of those alone."""
    pytest.importorskip("vl_convert", reason="the report extra is not installed")
    folder = tmp_path_factory.mktemp("reports")
    lonely = plain_scan("single", sequences=1)
    pages: dict[str, tuple[list[Any], list[Any]]] = {
        "plain": ([full_scan(), plain_scan("GPT-2 small", lift=0.08)], []),
        "hostile": ([hostile_scan(), full_scan()], []),
        "single": ([lonely], []),
        "empty": ([type(lonely)("empty", (), {}, {}, {}, complete=False)], []),
        "why": ([full_scan()], [full_explanation(), weights_alone()]),
        "why-alone": ([], [full_explanation()]),
        "why-hostile": ([hostile_scan()], [hostile_explanation()]),
    }
    return {name: write_report(scans, folder / f"{name}.html", whys) for name, (scans, whys) in pages.items()}


@pytest.fixture
def visit(browser: Any, reports: dict[str, Path]) -> Iterator[Callable[..., Visit]]:
    """Open one of `reports` from disk, listening to everything."""
    contexts = []

    def open_page(name: str, width: int = 1200, **options: Any) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        seen = Visit(context.new_page())
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
        seen.page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
        seen.page.on("dialog", lambda dialog: (seen.complaints.append("a dialog"), dialog.dismiss()))
        seen.page.goto(reports[name].as_uri())
        seen.wait()
        return seen

    yield open_page
    for context in contexts:
        context.close()
