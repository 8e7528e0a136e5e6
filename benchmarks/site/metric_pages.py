"""A page for every metric: definition, formula, source, picture."""

from __future__ import annotations

from benchmarks.site.docstrings import to_markdown
from benchmarks.site.page import Page, chapter, facts, source_link, yes
from benchmarks.site.pictures import path_of, picture
from unsmooth.cli.ls import READS
from unsmooth.functional import METRICS, Metric

_CHANGES = {
    "permutation": "permuting tokens",
    "reflection": "x → −x",
    "rotation": "rotating features",
    "scale": "scaling x",
    "token_scale": "scaling each token",
    "translation": "adding one vector to all tokens",
}
_WHEN_ALIKE = {True: "rises", False: "falls", None: "may do either"}


def metric_pages() -> list[Page]:
    """All metrics, those of the default scan first."""
    found = sorted(METRICS.values(), key=lambda metric: (not metric.default, metric.name))
    introduction = (
        "Pure functions of token vectors or attention maps, one value per sequence, in float32 or better: "
        '`unsmooth.functional.NAME`, or `unsmooth.scan(model, data, metrics=["NAME(option=value)"])`. '
        "`unsmooth ls metrics` prints this list."
    )
    about = {metric.name: metric.definition for metric in found}
    return chapter("metrics", "Metrics", introduction, [_page(metric) for metric in found], about)


def _page(metric: Metric) -> Page:
    options = ", ".join(f"`{key}={option.default!r}`" for key, option in metric.options.items())
    declared = facts(
        {
            "reads": READS.get(metric.reads, metric.reads),
            "in the default scan": yes(metric.default),
            "options": options,
            "as tokens become alike": _WHEN_ALIKE[metric.rises_when_alike],
            "by chance": metric.chance_note,
            "degenerate input": metric.degenerate,
            "does not change under": ", ".join(_CHANGES.get(change, change) for change in sorted(metric.invariances)),
            "differentiable": yes(metric.differentiable),
            "cost": metric.cost,
            "source": metric.paper,
            "code": source_link(metric.function),
        }
    )
    path, drawn = path_of(metric), picture(metric)
    shown = (
        f"## How it moves\n\n{drawn}\n\n*{path.words}* The band goes from the least to the greatest value.\n"
        if (path and drawn)
        else ""
    )
    text = (
        f"# {metric.name}\n\n{metric.definition}\n\n{declared}\n\n{shown}\n\n"
        f"## In full\n\n{to_markdown(metric.function.__doc__ or '')}\n"
    )
    return Page(f"reference/metrics/{metric.name}.md", metric.name, text)
