"""What a claim measures with: how much, where results go, which models are at hand, and trained runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from unsmooth.errors import UnsmoothError
from unsmooth.evidence.records import SEEDS, Scale, Store, Trained
from unsmooth.evidence.study import STUDIES
from unsmooth.executing import Crew
from unsmooth.stopping import Deadline
from unsmooth.training import Progress


@dataclass(frozen=True)
class Specimen:
    """One model to look at.

    Args:
        name: What to call it.
        load: Brings the model.
        data: Brings what `unsmooth.scan` takes: texts, images or batches.
        options: Further options of `scan` and `explain`, such as batch_size.
        ours: Whether it was trained here.
        trained: Whether it was trained at all; random weights stand in where nothing else is at hand.
        lineage: What models have in common of which one was trained from another; by default its own name.
        explained: Folder of a saved explanation, where there is one already.
    """

    name: str
    load: Callable[[], nn.Module]
    data: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)
    ours: bool = False
    trained: bool = True
    lineage: str = ""
    explained: str | None = None


T = TypeVar("T")


class NotFinishedError(UnsmoothError):
    """The time given was too short; what was trained so far is kept."""


@dataclass(frozen=True)
class Bench:
    """Handed to every claim and study.

    Args:
        scale: How much to do.
        out: Folder of results.
        runs: Folder of training runs: large, and not for sharing.
        device: Where to train; "auto" takes a GPU where there is one.
        specimens: Models that others trained, besides those that come with the package.
        crew: Who trains: this process, others of this machine, Ray, SLURM.
        deadline: Stop training then; call again to go on. Of 0 seconds: train nothing.
        tell: Called with every `Progress` of a training run in this process.
        announce: Called with how many runs there are and about how long they take, before the first of them; nothing is
            timed for it where it is None.
    """

    scale: Scale = "tiny"
    out: Path = Path("evidence")
    runs: Path = Path("runs/evidence")
    device: str = "auto"
    specimens: Sequence[Specimen] = ()
    crew: Crew = field(default_factory=Crew)
    deadline: Deadline = field(default_factory=Deadline)
    tell: Callable[[Progress], None] = lambda _: None
    announce: Callable[[str], object] | None = None

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
        from unsmooth.evidence.run import carry_out_study

        found: dict[str, dict[int, Trained]] = {}
        for run in carry_out_study(STUDIES[name], self):
            found.setdefault(run.variant, {})[run.seed] = run
        return found
