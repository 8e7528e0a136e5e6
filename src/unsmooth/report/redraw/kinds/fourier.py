"""Park & Kim 2022: relative log amplitude by frequency, a line per layer, and of the highest frequency by depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.presets import PRESETS
from unsmooth.report.plates.plate import curve_series, through_the_blocks
from unsmooth.report.redraw.kind import KINDS, Kind
from unsmooth.scanning import Scan

_PRESET = "park_kim_amplitude"
_UP = "Δ log amplitude"


def _by_frequency(scan: Scan) -> Panel:
    profile = scan.profile(PRESETS[_PRESET].curve, "residual")
    lines = [Series(f"layer {line.layer}", line.at, line.values) for line in profile.lines]
    return Panel(f"{scan.name}: by frequency", profile.axis, _UP, lines, ordered=True)


def draw(found: Mapping[str, Sequence[Scan]]) -> Figure:
    """A panel by frequency for each model, then one by depth for all."""
    scans = found[_PRESET]
    curves = []
    for scan in scans:
        rows, at = through_the_blocks([row for row in scan.rows if row.metric == PRESETS[_PRESET].curve])
        curves.append(curve_series(scan.name, rows, at))
    by_depth = Panel("Highest frequency, by depth", "layer (l − ½: after the attention of block l)", _UP, curves)
    return Figure(
        "Log amplitude of the Fourier transformed feature maps relative to frequency 0, as in figures 2a and 8 of "
        "Park & Kim 2022. They find that attention lowers it, from a block's input to its middle, and that "
        "MLPs raise it.",
        [*(_by_frequency(scan) for scan in scans), by_depth],
    )


KINDS.add(
    "fourier",
    Kind(
        name="fourier",
        summary="relative log amplitude of feature maps, by frequency for every layer and by depth",
        source="Park & Kim 2022 (arXiv 2202.06709), figures 2a and 8",
        presets=(_PRESET,),
        draw=draw,
    ),
)
