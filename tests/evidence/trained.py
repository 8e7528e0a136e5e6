"""Runs that nobody trained, for claims that look at nothing but what is kept of a run."""

from __future__ import annotations

from typing import Any

from unsmooth.evidence import Bench, Trained

Studies = dict[str, dict[str, dict[int, Trained]]]


def run(variant: str, seed: int, accuracy: float, *, state: str = "finished", **kept: Any) -> Trained:
    """A run of a classifier with 100 classes."""
    return Trained(
        variant=variant,
        seed=seed,
        config={"network": {"classes": 100}},
        made={"state": state},
        evaluations=({"epoch": 1.0, "loss": 1.0, "accuracy": accuracy},),
        **{"similarity": {}, **kept},
    )


class TrainedAlready(Bench):
    """A bench that has what it is asked for."""

    studies: Studies

    def study(self, name: str) -> dict[str, dict[int, Trained]]:
        """As given."""
        return self.studies[name]


def bench(**studies: dict[str, dict[int, Trained]]) -> TrainedAlready:
    """A bench with these studies."""
    found = TrainedAlready()
    object.__setattr__(found, "studies", studies)
    return found
