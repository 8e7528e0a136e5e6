"""A study: training runs that one or several claims draw on, variants by seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import nn

from unsmooth.registry import Registry
from unsmooth.training import Config

if TYPE_CHECKING:
    from unsmooth.evidence.bench import Bench


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
