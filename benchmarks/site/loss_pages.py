"""A page for every loss of hidden states: formula, paper, options, what is not known."""

from __future__ import annotations

from benchmarks.site.docstrings import to_markdown
from benchmarks.site.page import Page, chapter, facts, source_link
from unsmooth.losses import LOSSES, Loss


def loss_pages() -> list[Page]:
    """All losses."""
    introduction = (
        "Functions of hidden states (batch, tokens, dim) and a mask that give a scalar with gradients, to be added to "
        "a task's own loss. `unsmooth ls losses` prints this list. [How to use them](../../losses.md)."
    )
    about = {name: found.summary for name, found in LOSSES.items()}
    return chapter("losses", "Losses", introduction, [_page(found) for found in LOSSES.values()], about)


def _page(found: Loss) -> Page:
    about = found.describe()
    declared = facts(
        {
            "equation": found.equation,
            "paper": found.paper,
            "formula": about["basis"],
            "cost": found.cost,
            "too little to compare": found.degenerate,
            "not known": found.unknown,
            "code": source_link(found.function),
        }
    )
    written = to_markdown(found.function.__doc__ or "")
    text = f"# {found.name}\n\n{found.summary}\n\n{declared}\n\n## In full\n\n{written}\n"
    return Page(f"reference/losses/{found.name}.md", found.name, text)
