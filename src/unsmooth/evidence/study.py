"""A study: training runs that one or several claims draw on, variants by seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import nn

from unsmooth.registry import Registry
from unsmooth.training import Config

if TYPE_CHECKING:
    from unsmooth.evidence.bench import Bench


@dataclass(frozen=True)
class Trained:
    """What is kept of one run.

    Attributes:
        variant: Which of the study's.
        seed: Of everything random.
        config: All settings, as plain data.
        made: Git commit, hardware, versions, seconds, steps, parameters, data.
        evaluations: Lines of the log: epoch, loss, accuracy.
        similarity: Metric to measurements over training: {"epoch": …, "layers": [embedding, layer 1, …]}.
        spectra: Over training: {"epoch": …, "layers": [{"asymmetry", "negative_share", …}]}.
        looked: What the study itself measured on the trained model.
    """

    variant: str
    seed: int
    config: Mapping[str, Any]
    made: Mapping[str, Any]
    evaluations: tuple[Mapping[str, Any], ...]
    similarity: Mapping[str, tuple[Mapping[str, Any], ...]]
    spectra: tuple[Mapping[str, Any], ...] = ()
    looked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """On the test set, at the end; of a classifier whose loss stopped being a number, that of guessing."""
        if self.made.get("state") == "stopped" or not self.evaluations:
            return self.chance
        return float(self.evaluations[-1]["accuracy"])

    @property
    def chance(self) -> float:
        """What guessing gets right where all classes are equally frequent, as in CIFAR."""
        return 1 / int(self.config["network"]["classes"])

    def layers(self, metric: str = "mean_cosine", moment: int = -1) -> list[float]:
        """A metric at each layer, embedding first: at the end of training, or with `moment` 0 before it."""
        return list(self.similarity[metric][moment]["layers"])


class Study(ABC):
    """Subclass in a file of its own and put `@study` above.

    Attributes:
        name: What `unsmooth evidence train` takes.
        about: In one sentence.
    """

    name: ClassVar[str]
    about: ClassVar[str]

    @abstractmethod
    def configs(self, bench: Bench) -> dict[str, Config]:
        """Variant to settings, of whatever seed; may look at what earlier studies of the bench found."""

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """Seeds of every variant."""
        return bench.seeds

    def look(self, model: nn.Module, config: Config, device: torch.device) -> dict[str, Any]:
        """Measure further things on a trained model, as plain data; nothing by default."""
        return {}


STUDIES = Registry[Study]("study")
S = TypeVar("S", bound=type[Study])


def study(kind: S) -> S:
    """Register a study."""
    STUDIES.add(kind.name, kind())
    return kind
