"""One model under many published definitions, as a plate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.numbers import spoken
from unsmooth.report.plates.plate import Plate, Table, card_of, curve_series

if TYPE_CHECKING:
    from unsmooth.scanning.definitions import Definitions

_VERDICTS = {"more": "more alike", "less": "less alike", "open": "neither clearly"}


def definitions_plate(found: Definitions) -> Plate:
    """All curves, a panel for each quantity; the last layers in a table; and how far two definitions are apart."""
    return Plate(
        name="presets",
        title=f"{found.name} under {len(found.scans)} published definitions",
        sentence=found.sentence,
        figure=Figure(
            "Output of each block by layer, mean with 95 % interval. Curves are on one pair of axes where they are "
            "definitions of one quantity; no others can be compared.",
            [_panel(found, quantity, names) for quantity, names in found.quantities.items()],
        ),
        cards=tuple(card_of(preset) for preset in found.presets.values()),
        tables=(_last_layers(found), *([_gaps(found)] if found.gaps else [])),
        notes=tuple(f"{name} is left out. {why}" for name, why in found.left_out.items()),
    )


def _panel(found: Definitions, quantity: str, names: list[str]) -> Panel:
    series: list[Series] = [curve_series(name, found.curve(name)) for name in names]
    title = quantity if len(names) > 1 else f"{quantity} ({names[0]})"
    return Panel(title, "layer", quantity, series)


def _last_layers(found: Definitions) -> Table:
    lines = []
    for quantity, names in found.quantities.items():
        for name in names:
            first, *_, last = found.curve(name)
            told = found.scans[name].metrics[found.presets[name].curve]
            ends = (spoken(first.mean), f"{spoken(last.mean)} [{spoken(last.ci_low)}, {spoken(last.ci_high)}]")
            lines.append((name, quantity, told.name, *ends, _VERDICTS[found.verdict(name)]))
    last_layer = found.curve(next(iter(found.scans)))[-1].layer
    heads = ("preset", "quantity", "metric", "layer 0", f"layer {last_layer} [95 % interval]", "tokens become")
    return Table("First and last layer", heads, tuple(lines))


def _gaps(found: Definitions) -> Table:
    lines = tuple(
        (gap.quantity, spoken(gap.size), str(gap.layer), f"{gap.higher} above {gap.lower}") for gap in found.gaps
    )
    return Table("Furthest apart", ("quantity", "difference", "at layer", "between"), lines)
