"""What a claim measures with: how much, where results go, which models are at hand, and trained runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from unsmooth.evidence.scale import SEEDS, Scale
from unsmooth.evidence.specimen import Specimen
from unsmooth.evidence.store import Store
from unsmooth.evidence.study import STUDIES, Trained
from unsmooth.training import Progress

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """Handed to every claim and study.

    Args:
        scale: How much to do.
        out: Folder of results.
        runs: Folder of training runs: large, and not for sharing.
        device: Where to train; "auto" takes a GPU where there is one.
        specimens: Models that others trained, besides those that come with the package.
        minutes: Stop training after so many; call again to go on. 0 trains nothing.
        sharing: How many commands like this one share the GPU; what a run's minutes are divided by.
        tell: Called with every `Progress` of a training run.
    """

    scale: Scale = "tiny"
    out: Path = Path("evidence")
    runs: Path = Path("runs/evidence")
    device: str = "auto"
    specimens: Sequence[Specimen] = ()
    minutes: float | None = None
    sharing: int = 1
    tell: Callable[[Progress], None] = lambda _: None

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of training runs."""
        return SEEDS[self.scale]

    @property
    def store(self) -> Store:
        """The results."""
        return Store(self.out)

    def pick(self, tiny: T, small: T, full: T) -> T:
        """What goes with the scale.

        >>> Bench(scale="small").pick(10, 100, 1000)
        100
        """
        return {"tiny": tiny, "small": small, "full": full}[self.scale]

    def study(self, name: str) -> dict[str, dict[int, Trained]]:
        """Runs of a study by variant and seed; what is not there yet is trained first."""
        from unsmooth.evidence.carrying import carry_out_study

        found: dict[str, dict[int, Trained]] = {}
        for run in carry_out_study(STUDIES[name], self):
            found.setdefault(run.variant, {})[run.seed] = run
        return found
