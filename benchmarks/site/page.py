"""A page of the site that is made and not written, and the tables in it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence_page import table
from benchmarks.site.links import ROOT


@dataclass(frozen=True)
class Page:
    """One page.

    Args:
        place: Where on the site, such as "reference/metrics/mean_cosine.md".
        title: In the navigation.
        text: Markdown.
    """

    place: str
    title: str
    text: str


def chapter(kind: str, title: str, introduction: str, pages: Sequence[Page], about: Mapping[str, str]) -> list[Page]:
    """The pages of a registry with one in front that lists them.

    Args:
        kind: Folder below reference/.
        title: Of the list.
        introduction: What stands above the list.
        pages: One for each entry.
        about: Title of a page to a line about it.
    """
    rows = [[f"[{page.title}]({Path(page.place).name})", about[page.title]] for page in pages]
    text = f"# {title}\n\n{introduction}\n\n{table(['', ''], rows)}\n"
    return [Page(f"reference/{kind}/index.md", title, text), *pages]


def facts(given: Mapping[str, Any]) -> str:
    """A table of what something declares; what is empty is left out."""
    return table(["", ""], [[name, str(value)] for name, value in given.items() if value not in ("", None)])


def source_link(thing: Any, depth: int = 3) -> str:
    """A link to the file of ours in which something is written; empty where it is another package's."""
    file = inspect.getsourcefile(inspect.unwrap(thing) if callable(thing) else thing)
    if file is None or not Path(file).is_relative_to(ROOT / "src"):
        return ""
    place = Path(file).relative_to(ROOT)
    return f"[{place}]({'../' * depth}{place})"


def yes(value: object, otherwise: str = "no") -> str:
    """Yes or no."""
    return "yes" if value else otherwise
