"""Park & Kim 2022: feature-map variance by depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unsmooth.evidence.figure import Figure, Panel
from unsmooth.presets import PRESETS
from unsmooth.report.plates.plate import curve_series, through_the_blocks
from unsmooth.report.redraw.kind import KINDS, Kind
from unsmooth.scanning import Scan

_PRESET = "park_kim_variance"


def draw(found: Mapping[str, Sequence[Scan]]) -> Figure:
    """A line per model."""
    curves = []
    for scan in found[_PRESET]:
        rows, at = through_the_blocks([row for row in scan.rows if row.metric == PRESETS[_PRESET].curve])
        curves.append(curve_series(scan.name, rows, at))
    along = "layer (l − ½: after the attention of block l)"
    return Figure(
        "Variance of the feature maps over the patches, as in figure 9 of Park & Kim 2022, with 95 % intervals.",
        [Panel("By depth", along, "feature-map variance", curves)],
    )


KINDS.add(
    "variance",
    Kind(
        name="variance",
        summary="feature-map variance by depth, through the middle of each block",
        source="Park & Kim 2022 (arXiv 2202.06709), figure 9",
        presets=(_PRESET,),
        draw=draw,
    ),
)
