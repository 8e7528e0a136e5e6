"""What a published kind of figure is, and the table of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from unsmooth.evidence.figure import Figure
from unsmooth.registry import Registry

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
