"""A page for every training recipe: what it is and every setting of it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from benchmarks.site.docstrings import to_markdown
from benchmarks.site.page import Page, chapter, source_link
from unsmooth.training import RECIPES


def recipe_pages() -> list[Page]:
    """All recipes."""
    introduction = (
        "`unsmooth train NAME`, with any [remedy](../remedies/index.md) by `--with` and any setting by `--set`. "
        "[The guide](../../training/guide.md); [what was reached](../../training/README.md)."
    )
    about = {name: (make.__doc__ or "").strip().splitlines()[0] for name, make in RECIPES.items()}
    return chapter("recipes", "Recipes", introduction, [_page(name, about[name]) for name in RECIPES], about)


def _page(name: str, about: str) -> Page:
    make = RECIPES[name]
    written = to_markdown(sys.modules[make.__module__].__doc__ or "")
    settings = json.dumps(asdict(make("base")), indent=2, default=str, ensure_ascii=False)
    text = (
        f"# {name}\n\n{about}\n\n{written}\n\n{source_link(make)}\n\n"
        f"```bash\nunsmooth train {name} --size tiny --with sharpen\n```\n\n"
        f"## Every setting, at full size\n\n```json\n{settings}\n```\n"
    )
    return Page(f"reference/recipes/{name}.md", name, text)
