"""A board: the pictures of one question, for every run and every choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from unsmooth.report.training.draw import Looks
from unsmooth.report.training.rows import finite
from unsmooth.report.training.variants import Variant
from unsmooth.report.why.panels import Picture

SIDE_BY_SIDE = 6
Key = tuple[int, int]
"""Subject and choice."""


@dataclass(frozen=True)
class Board:
    """Pictures of one question: one for each subject, all of the same choice.

    Attributes:
        name: What the page and `figure` call it.
        title: Its heading.
        panels: By subject and choice; what a subject did not measure is absent.
        rows: The field down the side of the picture's table of numbers.
        columns: The field along its top; empty where `cells` are themselves the columns.
        cells: The field, or fields, of its numbers.
        choose: What is chosen, such as "Metric"; boards that choose the same from the same move together.
        choices: The names to choose from.
        subjects: What stands side by side; one empty name where a picture holds everything.
        reading: How to read the pictures.
    """

    name: str
    title: str
    panels: Mapping[Key, Picture]
    rows: str
    columns: str
    cells: tuple[str, ...]
    choose: str = ""
    choices: tuple[str, ...] = ("",)
    subjects: tuple[str, ...] = ("",)
    reading: str = ""

    @property
    def readings(self) -> list[str]:
        """How to read the pictures of each choice: what holds for all, and what for this one."""
        found = {choice: panel.reading for (_, choice), panel in self.panels.items()}
        return [f"{self.reading} {found.get(choice, '')}".strip() for choice in range(len(self.choices))]

    @property
    def beside(self) -> bool:
        """Whether all subjects are shown at once; of many, the reader chooses one."""
        return len(self.subjects) <= SIDE_BY_SIDE

    @property
    def places(self) -> list[list[int | None]]:
        """By subject and choice, the place of each panel in the order of `panels`."""
        order = {key: place for place, key in enumerate(self.panels)}
        choices = range(len(self.choices))
        return [[order.get((subject, choice)) for choice in choices] for subject in range(len(self.subjects))]


@dataclass(frozen=True)
class Limits:
    """How much is drawn.

    Attributes:
        points: Of a line.
        times: Columns of a map.
    """

    points: int = 2000
    times: int = 200


@dataclass(frozen=True)
class Subject:
    """What is drawn, and how much of it."""

    variants: tuple[Variant, ...]
    limits: Limits

    @property
    def names(self) -> tuple[str, ...]:
        """Of the variants."""
        return tuple(variant.name for variant in self.variants)

    @property
    def looks(self) -> Looks:
        """Name and colour of every variant."""
        return tuple((variant.name, variant.colour) for variant in self.variants)

    @cached_property
    def time(self) -> str:
        """What time is counted in: epochs where every line has one and the training lasts for one, else steps."""
        runs = [run for variant in self.variants for run in variant.runs]
        epochs = [finite(line.get("epoch")) for run in runs for line in (*run.training, *run.evaluations, *run.spectra)]
        told = [epoch for epoch in epochs if epoch is not None]
        return "epoch" if len(told) == len(epochs) and max(told, default=0) >= 1 else "step"


def present(panels: Iterable[tuple[Key, Picture | None]]) -> dict[Key, Picture]:
    """Those that there is data for."""
    return {key: panel for key, panel in panels if panel is not None}
