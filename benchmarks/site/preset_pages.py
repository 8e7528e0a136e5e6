"""A page for every preset: a published definition, where it comes from, and what it leaves open."""

from __future__ import annotations

from benchmarks.site.page import Page, chapter, facts
from unsmooth.functional import parse_metric
from unsmooth.presets import PRESETS, Preset
from unsmooth.presets.preset import BASES


def preset_pages() -> list[Page]:
    """All presets."""
    found = sorted(PRESETS.values(), key=lambda preset: preset.name)
    introduction = (
        "Published definitions by name: which [metric](../metrics/index.md), of which tokens, where in the network, "
        "averaged how, and says who."
    )
    about = {preset.name: preset.summary for preset in found}
    return chapter("presets", "Presets", introduction, [_page(preset) for preset in found], about)


def _page(preset: Preset) -> Page:
    metrics = [parse_metric(text) for text in preset.measured]
    declared = facts(
        {
            "metrics": ", ".join(f"[`{one.name}`](../metrics/{one.metric.name}.md)" for one in metrics),
            "taken off the first": f"`{preset.minus}`" if preset.minus else "",
            "tokens": preset.tokens,
            "sites": ", ".join(preset.sites),
            "aggregation": preset.aggregation,
            "source": preset.source,
            "rests on": BASES[preset.basis],
            "needs": ", ".join(preset.needs),
        }
    )
    parts = [f"# {preset.name}", preset.summary, declared]
    for title, lines in (("What the source leaves open", preset.unknown), ("What differs here", preset.differs)):
        if lines:
            parts += [f"## {title}", "\n".join(f"- {line}" for line in lines)]
    return Page(f"reference/presets/{preset.name}.md", preset.name, "\n\n".join(parts) + "\n")
