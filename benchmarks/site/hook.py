"""What mkdocs calls: pages are added, links are led right, and the navigation is made of what there is."""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# mkdocs loads this file by its path.
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []

from mkdocs.structure.files import File, Files  # noqa: E402

from benchmarks.site import (  # noqa: E402
    claim_pages,
    host_pages,
    links,
    loss_pages,
    metric_pages,
    notebook,
    posthoc_pages,
    preset_pages,
    recipe_pages,
    remedy_pages,
)
from benchmarks.site.page import Page  # noqa: E402

CHAPTERS = {
    "Metrics": metric_pages.metric_pages,
    "Presets": preset_pages.preset_pages,
    "Models": host_pages.host_pages,
    "Remedies": remedy_pages.remedy_pages,
    "Losses": loss_pages.loss_pages,
    "After the fact": posthoc_pages.posthoc_pages,
    "Recipes": recipe_pages.recipe_pages,
    "Claims": claim_pages.claim_pages,
}
DOCS = ROOT / "docs"
STYLE, STYLE_FILE = Path(__file__).with_name("site.css"), "assets/site.css"


@functools.cache
def chapters() -> dict[str, list[Page]]:
    """Pages made from registries."""
    return {title: make() for title, make in CHAPTERS.items()}


@functools.cache
def notebooks() -> list[Page]:
    """Every notebook, run."""
    return [
        Page(f"notebooks/{path.stem}.md", heading(notebook.cells_of(path)[0].source), notebook.as_markdown(path))
        for path in sorted(notebook.FOLDER.glob("*.ipynb"))
    ]


def heading(text: str) -> str:
    r"""The first heading of a page.

    >>> heading("# Scan a model\n\nText.")
    'Scan a model'
    """
    return next(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


def made_pages() -> list[Page]:
    """Every page that is not in docs/ as it is."""
    whole = [Page(place, "", (ROOT / name).read_text(encoding="utf-8")) for name, place in links.AS_PAGES.items()]
    return [*whole, *notebooks(), *(page for pages in chapters().values() for page in pages)]


def written_pages() -> list[Page]:
    """The pages of docs/, those of a folder behind its README."""
    found = sorted(DOCS.rglob("*.md"), key=lambda path: (path.parent, path.name != "README.md", path.name))
    texts = [(path.relative_to(DOCS).as_posix(), path.read_text(encoding="utf-8")) for path in found]
    return [Page(place, heading(text), text) for place, text in texts]


def on_config(config: Any) -> Any:
    """The navigation: guides, notebooks, then the reference."""
    logging.getLogger("mkdocs").info("Making pages from the registries and running notebooks")
    rest = {name: place for name, place in links.AS_PAGES.items() if place != "index.md"}
    config.nav = [
        {"unsmooth": "index.md"},
        {"Guides": [{page.title: page.place} for page in written_pages()]},
        {"Notebooks": [{page.title: page.place} for page in notebooks()]},
        *(
            {title: [front.place, *({page.title: page.place} for page in pages)]}
            for title, (front, *pages) in chapters().items()
        ),
        *({heading((ROOT / name).read_text(encoding="utf-8")): place} for name, place in rest.items()),
    ]
    config.extra_css.append(STYLE_FILE)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and the files that links lead to."""
    needed: set[str] = set()
    for page in (*made_pages(), *written_pages()):
        needed |= links.rewritten(page.text, page.place)[1]
    for page in made_pages():
        files.append(File.generated(config, page.place, content=page.text))
    files.append(File.generated(config, STYLE_FILE, content=STYLE.read_text(encoding="utf-8")))
    for place in sorted(needed):
        files.append(File.generated(config, links.copied_as(place), abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links right that lead out of docs/."""
    return links.rewritten(markdown, page.file.src_uri)[0]
