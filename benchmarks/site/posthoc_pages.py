"""A page for every estimator of `unsmooth.posthoc`."""

from __future__ import annotations

from benchmarks.site.docstrings import to_markdown
from benchmarks.site.page import Page, chapter, facts, source_link
from unsmooth.posthoc import ESTIMATORS, Estimator


def posthoc_pages() -> list[Page]:
    """All estimators."""
    introduction = (
        "Embeddings of a model that stays as it is, made less alike by `fit` and `transform`, in scikit-learn's way. "
        "[How to use them](../../posthoc.md)."
    )
    about = {name: kind.summary for name, kind in ESTIMATORS.items()}
    return chapter("posthoc", "After the fact", introduction, [_page(kind) for kind in ESTIMATORS.values()], about)


def _page(kind: type[Estimator]) -> Page:
    given = {"class": f"`unsmooth.posthoc.{kind.__name__}`", "equation": kind.equation, "paper": kind.paper}
    declared = facts({**given, "code": source_link(kind)})
    written = to_markdown(kind.__doc__ or "")
    text = f"# {kind.name}\n\n{kind.summary}\n\n{declared}\n\n## In full\n\n{written}\n"
    return Page(f"reference/posthoc/{kind.name}.md", kind.name, text)
