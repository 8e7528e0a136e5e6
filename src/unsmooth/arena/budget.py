"""How long every run of an arena is: as the recipe says, so many steps, or as many as a plain run makes in a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from unsmooth.errors import expected
from unsmooth.stopping import seconds_in
from unsmooth.training import Config


@dataclass(frozen=True)
class Budget:
    """Of a single run, in one of two ways.

    Args:
        text: As it was given.
        steps: So many; or
        seconds: as many steps as the plain model makes in this time, alone on its device, looking and saving not
            counted. Remedied models make the same number of steps, however long they take.
    """

    text: str
    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, text: str) -> Budget:
        """A time such as "5m", "90s" or "1.5h", or "2000steps".

        >>> Budget.read("1.5h").seconds, Budget.read("2000steps").steps
        (5400.0, 2000)
        """
        steps = text.strip().lower().removesuffix("steps").strip()
        if steps.isdecimal() and steps != text.strip() and int(steps):
            return cls(text, steps=int(steps))
        if not (seconds := seconds_in(text)):
            raise expected("a budget of a run, as a time or in steps", repr(text), "--budget 5m, or --budget 2000steps")
        return cls(text, seconds=seconds)

    @property
    def meaning(self) -> tuple[int | None, float | None]:
        """Without how it was written.

        >>> Budget.read("1m").meaning == Budget.read("60.0s").meaning
        True
        """
        return self.steps, self.seconds

    def steps_at(self, seconds_of_a_step: float) -> int:
        """How many steps it is for a plain model whose step takes so long.

        >>> Budget.read("5m").steps_at(0.25), Budget.read("7steps").steps_at(0.25)
        (1200, 7)
        """
        if self.steps is not None:
            return self.steps
        assert self.seconds is not None
        return max(1, math.floor(self.seconds / seconds_of_a_step))


@dataclass(frozen=True)
class Settled:
    """What all runs of a model have in common.

    Args:
        config: Its settings, cut to the budget.
        steps_of_a_unit: Steps in what the run's length is given in: those of an epoch of all samples, or 1.
    """

    config: Config
    steps_of_a_unit: float = 1.0

    def in_steps(self) -> Config:
        """The same settings with every length in steps: where there are fewer samples, an epoch has fewer of them.

        >>> from unsmooth.training import recipe
        >>> found = Settled(cut(recipe("vit_cifar100"), 5208, 520.8), 520.8).in_steps()
        >>> found.epochs, found.steps, round(found.schedule.warmup, 1), found.checkpoint_every
        (None, 5208, 86.8, 5208.0)
        """
        unit, config = self.steps_of_a_unit, self.config
        if config.steps is not None:
            return config
        return replace(
            config,
            epochs=None,
            steps=max(1, round(length(config) * unit)),
            schedule=replace(config.schedule, warmup=config.schedule.warmup * unit),
            measuring=replace(
                config.measuring,
                every=config.measuring.every * unit,
                at=tuple(moment * unit for moment in config.measuring.at),
            ),
            evaluate_every=config.evaluate_every * unit,
            checkpoint_every=config.checkpoint_every * unit,
        )


def length(config: Config) -> float:
    """Of a run, in its own unit: epochs, or steps."""
    return float(config.steps if config.steps is not None else config.epochs or 0.0)


def cut(config: Config, steps: int, steps_of_a_unit: float) -> Config:
    """The same settings for another number of steps; the warm-up keeps its share of the run.

    Args:
        config: From a recipe.
        steps: How many.
        steps_of_a_unit: Steps in what the run's length is given in: those of an epoch, or 1.

    >>> from unsmooth.training import recipe
    >>> short = cut(recipe("vit_cifar100"), 5208, 520.8)
    >>> short.epochs, round(short.schedule.warmup, 3)  # 5 of 300 epochs, so 1 of 60
    (10.0, 0.167)
    """
    share = steps / steps_of_a_unit / length(config)
    schedule = replace(config.schedule, warmup=config.schedule.warmup * share)
    if config.steps is not None:
        return replace(config, steps=steps, schedule=schedule)
    return replace(config, epochs=steps / steps_of_a_unit, schedule=schedule)
