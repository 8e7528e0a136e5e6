"""Gong et al. 2021 and Wang et al. 2022: cosine of the tokens by depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unsmooth.evidence.figure import Figure, Panel
from unsmooth.presets import PRESETS
from unsmooth.report.plates.plate import curve_series
from unsmooth.report.redraw.kind import KINDS, Kind
from unsmooth.scanning import Scan


def draw(found: Mapping[str, Sequence[Scan]]) -> Figure:
    """A panel for each definition, a line per model."""
    panels = []
    for preset, scans in found.items():
        curves = [curve_series(scan.name, scan.curve(PRESETS[preset].curve, "residual")) for scan in scans]
        panels.append(Panel(preset, "layer", "cosine", curves))
    return Figure(
        "Cosine of the tokens at the output of each block by two definitions, with 95 % intervals: absolute and with "
        "itself (vita, figure 4 of Wang et al. 2022), absolute and of different patches (gong, Gong et al. 2021).",
        panels,
    )


KINDS.add(
    "cosine",
    Kind(
        name="cosine",
        summary="cosine of the tokens by depth, by the definitions of two papers",
        source="Wang et al. 2022 (arXiv 2203.05962), figure 4; Gong et al. 2021 (arXiv 2104.12753)",
        presets=("vita", "gong"),
        draw=draw,
    ),
)
