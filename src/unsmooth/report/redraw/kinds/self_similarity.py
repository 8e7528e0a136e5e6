"""Ethayarajh 2019: how context-specific words are, by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unsmooth.evidence.figure import Figure, Panel
from unsmooth.presets import PRESETS
from unsmooth.report.plates.plate import curve_series
from unsmooth.report.redraw.kind import KINDS, Kind
from unsmooth.scanning import Scan

_TITLES = {
    "ethayarajh_self_similarity": "Self-similarity, adjusted",
    "ethayarajh_intra_sentence": "Intra-sentence similarity, adjusted",
    "ethayarajh_mev": "Maximum explainable variance",
}


def draw(found: Mapping[str, Sequence[Scan]]) -> Figure:
    """Random pairs, then a panel for each of the three measures."""
    first = found["ethayarajh_self_similarity"]
    random = [curve_series(scan.name, scan.curve("random_pair_cosine", "residual")) for scan in first]
    panels = [Panel("Random tokens (anisotropy)", "layer", "cosine", random)]
    for preset, title in _TITLES.items():
        curves = [curve_series(scan.name, scan.curve(PRESETS[preset].curve, "residual")) for scan in found[preset]]
        panels.append(Panel(title, "layer", PRESETS[preset].quantity, curves))
    return Figure(
        "The measures of Ethayarajh 2019 by layer: how alike random tokens of different texts are, and, less that, the "
        "same word in different texts and the words of one text. Intervals are over words or texts.",
        panels,
    )


KINDS.add(
    "self_similarity",
    Kind(
        name="self_similarity",
        summary="anisotropy, self-similarity, intra-sentence similarity and explainable variance by layer",
        source="Ethayarajh 2019 (arXiv 1909.00512), figures of each by layer",
        presets=tuple(_TITLES),
        draw=draw,
        data="texts",
    ),
)
