"""Links that lead out of docs/: pages of the site where there are some, else the file itself, which goes along."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
AS_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
}
FILES = "files"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^```.*?^```\s*$", re.DOTALL | re.MULTILINE)


def in_repository(page: str) -> PurePosixPath:
    """Where a page of the site is in the repository, or would be.

    >>> str(in_repository("index.md")), str(in_repository("training/guide.md"))
    ('README.md', 'docs/training/guide.md')
    """
    back = {site: here for here, site in AS_PAGES.items()}
    return PurePosixPath(back.get(page, f"docs/{page}"))


def rewritten(text: str, page: str) -> tuple[str, set[str]]:
    """A page with links that work on the site, and the files of the repository that these need.

    Args:
        text: Markdown.
        page: Its place on the site.

    >>> rewritten("[log](CHANGELOG.md), [one](docs/theory.md#a), [code](src/unsmooth/errors.py), [x](#y)", "index.md")
    ('[log](changelog.md), [one](theory.md#a), [code](files/src/unsmooth/errors.py.txt), [x](#y)',
     {'src/unsmooth/errors.py'})
    """
    needed: set[str] = set()

    def replaced(match: re.Match[str]) -> str:
        image, label, target, anchor = match.groups()
        if not target or re.match(r"[a-z]+:", target):
            return match.group()
        place = os.path.normpath(in_repository(page).parent / target)
        if (ROOT / place).is_dir() and not (ROOT / place / "README.md").is_file():
            return label  # a folder is no page
        if (ROOT / place).is_dir():
            place += "/README.md"
        on_site = _on_site(place, needed.add)
        return f"{image}[{label}]({os.path.relpath(on_site, PurePosixPath(page).parent)}{anchor or ''})"

    parts, fences = _FENCE.split(text), _FENCE.findall(text)
    return "".join(_LINK.sub(replaced, part) + fence for part, fence in zip(parts, [*fences, ""], strict=True)), needed


def _on_site(place: str, need: Callable[[str], None]) -> str:
    if place in AS_PAGES:
        return AS_PAGES[place]
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    if (ROOT / place).is_file():
        need(place)
    return copied_as(place)


def copied_as(place: str) -> str:
    """The name of a file that goes along; code as text, which browsers show.

    >>> copied_as("Makefile"), copied_as("benchmarks/results/scan_cost.json")
    ('files/Makefile.txt', 'files/benchmarks/results/scan_cost.json')
    """
    shown = PurePosixPath(place).suffix in (".json", ".csv", ".txt", ".svg", ".jsonl")
    return f"{FILES}/{place}" + ("" if shown else ".txt")
