"""Published kinds of figure: what each is, the table of all, and one drawn again for some models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from unsmooth.evidence.figure import Figure
from unsmooth.presets import PRESETS
from unsmooth.registry import Registry
from unsmooth.report.plates.plate import Plate, card_of
from unsmooth.scanning import Scan, compare_presets, scan

if TYPE_CHECKING:
    from unsmooth.scanning import Scan


@dataclass(frozen=True)
class Kind:
    """A kind of figure that was published.

    Args:
        name: What it is asked for by.
        summary: What it shows, in one line.
        source: Where figures of this kind were published.
        presets: The definitions behind it.
        draw: From preset to the scans of every model, in one order, to the figure.
        baseline: Whether models with random weights are in it.
        data: What a model is shown by default.
    """

    name: str
    summary: str
    source: str
    presets: tuple[str, ...]
    draw: Callable[[Mapping[str, Sequence[Scan]]], Figure]
    baseline: bool = False
    data: Literal["images", "texts"] = "images"


KINDS = Registry[Kind]("kind of figure", home="unsmooth.report.redraw.kinds")


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
