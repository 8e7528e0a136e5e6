"""When things happen in a run: its length in steps, and the steps after which to look, measure and save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from unsmooth.errors import expected
from unsmooth.training.config import Config


@dataclass(frozen=True)
class Timetable:
    """A run in steps.

    Args:
        steps: All of them.
        per_epoch: Micro-batches in an epoch.
        passes: Micro-batches in a step once the batch is full.
        warmup: Steps in which the learning rate rises.
        evaluations: Steps after which to evaluate.
        measurements: Steps after which to measure tokens; 0 is before the first.
        checkpoints: Steps after which to save.
        ramp: Steps over which the batch grows to its full size.
    """

    steps: int
    per_epoch: int
    passes: int
    warmup: int
    evaluations: frozenset[int]
    measurements: frozenset[int]
    checkpoints: frozenset[int]
    ramp: int

    def passes_of(self, step: int) -> int:
        """Micro-batches that make up step number `step`, from 0.

        >>> table = Timetable(10, 100, 4, 0, frozenset(), frozenset(), frozenset(), ramp=6)
        >>> [table.passes_of(step) for step in range(8)]
        [1, 1, 2, 2, 3, 3, 4, 4]
        """
        if step >= self.ramp:
            return self.passes
        return min(self.passes, 1 + math.floor(step * self.passes / (self.ramp + self.passes / 2)))

    @cached_property
    def _ramped(self) -> list[int]:
        """Micro-batches before each step of the ramp, and before the first step after it."""
        return [0, *accumulate(self.passes_of(step) for step in range(self.ramp))]

    def batches_before(self, step: int) -> int:
        """Micro-batches before step number `step`.

        >>> table = Timetable(10, 100, 4, 0, frozenset(), frozenset(), frozenset(), ramp=6)
        >>> [table.batches_before(step) for step in (0, 1, 6, 8)]
        [0, 1, 12, 20]
        """
        return self._ramped[min(step, self.ramp)] + max(0, step - self.ramp) * self.passes

    @cached_property
    def due(self) -> frozenset[int]:
        """Steps after which there is more to do than to go on."""
        return self.evaluations | self.measurements | self.checkpoints

    def epoch_after(self, step: int) -> float:
        """Epochs that are over after `step` steps."""
        return self.batches_before(step) / self.per_epoch


def timetable(config: Config, per_epoch: int, share: int, ranks: int) -> Timetable:
    """Work out the steps of `config`.

    Args:
        config: The run.
        per_epoch: Micro-batches of all processes together in an epoch.
        share: Samples that a process takes at a time.
        ranks: Processes.
    """
    together = share * ranks
    if config.batch % together:
        hint = f"--set batch={together * max(1, config.batch // together)}"
        raise expected(f"a batch that {ranks} x {share} samples divide", config.batch, hint)
    passes = config.batch // together
    if config.steps is not None:
        unit, steps = 1.0, config.steps
    else:
        assert config.epochs is not None
        unit = per_epoch / passes
        steps = max(1, round(config.epochs * unit))

    def moments(every: float, *, first: bool = False) -> frozenset[int]:
        count = math.floor(steps / max(1.0, every * unit)) if every > 0 else 0
        inside = {round(index * max(1.0, every * unit)) for index in range(1, count + 1)}
        return frozenset({step for step in inside if 0 < step < steps} | {steps} | ({0} if first else set()))

    extra = {round(at * unit) for at in config.measuring.at}
    measured = moments(config.measuring.every, first=True) | {one for one in extra if one <= steps}
    return Timetable(
        steps=steps,
        per_epoch=per_epoch,
        passes=passes,
        warmup=round(config.schedule.warmup * unit),
        evaluations=moments(config.evaluate_every),
        measurements=measured if config.measuring.sequences else frozenset(),
        checkpoints=moments(config.checkpoint_every),
        ramp=round(config.ramp * steps),
    )


def share_of(config: Config, ranks: int) -> int:
    """Samples that one process takes at a time."""
    if config.micro_batch is not None:
        return config.micro_batch
    if config.batch % ranks:
        hint = f"--set batch={ranks * max(1, config.batch // ranks)}"
        raise expected(f"a batch that {ranks} processes divide", config.batch, hint)
    return config.batch // ranks
