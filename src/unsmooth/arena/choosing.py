"""At which learning rate an entrant is scored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from unsmooth.arena.folder import ArenaFolder
from unsmooth.arena.plan import Entrant, Plan
from unsmooth.arena.scores import score_of
from unsmooth.evidence.rates import best, on_edge


@dataclass(frozen=True)
class Choice:
    """The rate, and what it was chosen by.

    Attributes:
        rate: The best of the grid; of several, the lowest.
        edge: Whether it lies at the end of the grid, so that a better one might lie beyond.
        scores: Rate to score, None where there is none; empty where the grid has a single rate.
        lost: Whether the loss stopped being a number at every rate: there is nothing to be scored.
        reason: What happened at the lowest rate then.
    """

    rate: float
    edge: bool = False
    scores: Mapping[float, float | None] = field(default_factory=dict)
    lost: bool = False
    reason: str = ""


def rate_run(rate: float) -> str:
    """What the run that tries a rate is called.

    >>> rate_run(0.0003)
    'rate-0.0003'
    """
    return f"rate-{rate:g}"


def seed_run(seed: int) -> str:
    """What the run of a seed is called."""
    return f"seed-{seed}"


def chosen(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> Choice | None:
    """The rate of an entrant; None where not all rates were tried yet."""
    if len(plan.rates) == 1:
        return Choice(plan.rates[0])
    runs = {rate: folder.outcome(entrant, rate_run(rate)) for rate in plan.rates}
    known = {rate: run for rate, run in runs.items() if run is not None}
    if len(known) < len(runs):
        return None
    scores = {rate: score_of(run, plan.score) for rate, run in known.items()}
    stopped = {rate for rate, run in known.items() if run.made.get("state") == "stopped"}
    worst = -math.inf if plan.more else math.inf  # a rate that breaks a model is no choice, however little others learn
    counted = {rate: worst if score is None or rate in stopped else score for rate, score in scores.items()}
    rate, lost = best(counted, more=plan.more), len(stopped) == len(known)
    reason = str(known[min(known)].made.get("reason") or "") if lost else ""
    return Choice(rate, on_edge(rate, plan.rates), scores, lost, reason)


def complete(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> bool:
    """Whether there is nothing left to train for an entrant."""
    choice = chosen(plan, folder, entrant)
    if choice is None:
        return False
    return choice.lost or all(folder.outcome(entrant, seed_run(seed)) is not None for seed in plan.seeds)


def left_over(plan: Plan, folder: ArenaFolder, call: str) -> list[Entrant]:
    """Who is not done yet, nor known by this call to be unable to."""
    found = []
    for entrant in plan.entrants:
        trouble = folder.trouble(entrant)
        if (trouble is None or trouble.get("call") != call) and not complete(plan, folder, entrant):
            found.append(entrant)
    return found
