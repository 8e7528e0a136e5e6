"""A page for every remedy: equation, paper, options, cost."""

from __future__ import annotations

import sys

from benchmarks.site.docstrings import to_markdown
from benchmarks.site.page import Page, chapter, facts, source_link, table
from unsmooth.remedies import REMEDIES, describe, names


def remedy_pages() -> list[Page]:
    """All remedies."""
    introduction = (
        'One-line changes of a model that you already hold: `unsmooth.apply(model, "NAME", option=value)`. '
        "`unsmooth ls remedies` prints this list. [What works on which model](../../remedies/matrix.md); "
        "[what each does and costs](../../remedies/README.md); "
        "[the authors' own code beside ours](../../remedies/official.md)."
    )
    about = {name: describe(name).summary for name in names()}
    return chapter("remedies", "Remedies", introduction, [_page(name) for name in names()], about)


def _page(name: str) -> Page:
    found, kind = describe(name), REMEDIES[name]
    neutral = ", ".join(f"`{key}={value!r}`" for key, value in (found.neutral or {}).items())
    declared = facts(
        {
            "equation": found.equation,
            "paper": found.paper,
            "does nothing at": neutral or "no setting",
            "in a decoder": found.causal,
            "folds into weights": found.folds or "no",
            "cost": found.cost,
            "code": source_link(kind),
        }
    )
    rows = [[f"`{option.name}={option.default!r}`", option.meaning] for option in found.options]
    options = f"## Options\n\n{table(['', ''], rows)}\n\n" if rows else ""
    written = to_markdown(sys.modules[kind.__module__].__doc__ or "")
    example = to_markdown(kind.__doc__ or "")
    text = f"# {name}\n\n{found.summary}\n\n{declared}\n\n{options}## In full\n\n{written}\n\n{example}\n"
    return Page(f"reference/remedies/{name}.md", name, text)
