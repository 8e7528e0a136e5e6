"""A published kind of figure for some models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from unsmooth.presets import PRESETS
from unsmooth.report.plates.plate import Plate, card_of
from unsmooth.report.redraw.kind import KINDS, Kind
from unsmooth.scanning import Scan, compare_presets, scan


def redraw(kind: str | Kind, models: Iterable[tuple[str, nn.Module, Any]], **settings: Any) -> Plate:
    """Measure models by the definition of a published figure, and lay that figure out again.

    Args:
        kind: A name of `KINDS`.
        models: What to call each, the model, and what it is shown.
        settings: Of `unsmooth.scan`, the same for all.

    Returns:
        A plate for `unsmooth.report.write_plate`. The numbers are those of these models, not the paper's.
    """
    chosen = KINDS[kind] if isinstance(kind, str) else kind
    found: dict[str, list[Scan]] = {preset: [] for preset in chosen.presets}
    names = []
    for name, model, data in models:
        names.append(name)
        for preset, one in _measured(chosen, model, data, name, settings).items():
            found[preset].append(one)
    scans = found[chosen.presets[0]]
    return Plate(
        name=chosen.name,
        title=f"{chosen.summary[0].upper()}{chosen.summary[1:]}: {', '.join(names)}",
        sentence=" ".join(f"{one.name}: {one.sentence}" for one in scans),
        figure=chosen.draw(found),
        cards=tuple(card_of(PRESETS[preset]) for preset in chosen.presets),
        notes=(
            f"A figure of the kind published in {chosen.source}, drawn anew: all numbers are of the models named here.",
            *dict.fromkeys(note for one in scans for note in one.notes if not note.startswith(("Preset", "Not known"))),
        ),
    )


def _measured(kind: Kind, model: nn.Module, data: Any, name: str, settings: dict[str, Any]) -> dict[str, Scan]:
    if kind.baseline:
        return {
            preset: scan(model, data, preset=preset, baseline=True, name=name, **settings) for preset in kind.presets
        }
    compared = compare_presets(model, data, presets=kind.presets, name=name, **settings)
    return {preset: replace(one, name=name) for preset, one in compared.scans.items()}
