"""Dong et al. 2021: distance to rank one by depth, at initialisation and trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from unsmooth.evidence.figure import Figure, Panel, on_one_scale
from unsmooth.presets import PRESETS
from unsmooth.report.plates.plate import curve_series
from unsmooth.report.redraw.kind import KINDS, Kind
from unsmooth.scanning import Scan

_PRESET = "dong"


def draw(found: Mapping[str, Sequence[Scan]]) -> Figure:
    """Random weights on the left, the models as they are on the right."""
    trained = found[_PRESET]
    random = [replace(scan.baseline, name=scan.name) for scan in trained if scan.baseline is not None]
    sides = {"Random weights": random, "As it is" if len(trained) == 1 else "As they are": trained}
    panels = [
        Panel(
            title,
            "layer",
            "relative residual",
            [curve_series(scan.name, scan.curve(PRESETS[_PRESET].curve, "residual")) for scan in scans],
        )
        for title, scans in sides.items()
    ]
    return Figure(
        "Residual after the token mean relative to the hidden states, as Dong et al. 2021 draw it for whole "
        "Transformers, with 95 % intervals; their networks without skip connections or MLPs are not here. With random "
        "weights, models of one architecture are one curve.",
        on_one_scale(panels),
    )


KINDS.add(
    "rank_residual",
    Kind(
        name="rank_residual",
        summary="relative residual after the token mean by depth, with random weights and as it is",
        source="Dong et al. 2021 (arXiv 2103.03404), figure of the residual by layer",
        presets=(_PRESET,),
        draw=draw,
        baseline=True,
    ),
)
