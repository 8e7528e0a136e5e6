"""At which learning rate an entrant is scored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unsmooth.arena.folder import ArenaFolder
from unsmooth.arena.plan import Entrant, Plan
from unsmooth.arena.scores import score_of
from unsmooth.evidence.rates import best, beyond, on_edge
from unsmooth.evidence.study import Trained


@dataclass(frozen=True)
class Choice:
    """The rate, and what it was chosen by.

    Attributes:
        rate: The best of those that were tried; of several, the lowest.
        edge: Whether it is the highest or the lowest of them, so that a better one might lie beyond.
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


def seed_run(seed: int, rate: float) -> str:
    """What the run of a seed is called; those of a rate that is not chosen any more are left where they are.

    >>> seed_run(0, 0.0003)
    'seed-0-rate-0.0003'
    """
    return f"seed-{seed}-{rate_run(rate)}"


def chosen(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> Choice | None:
    """The rate of an entrant; None where not all rates were tried yet."""
    return _choice(plan, _tried(plan, folder, entrant))


def wanted_runs(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> dict[str, tuple[float, int]]:
    """Name to rate and seed of every run that is known to be wanted by now, those that are done included."""
    tried = _tried(plan, folder, entrant)
    found = {rate_run(rate): (rate, plan.probe_seed) for rate in tried}
    choice = _choice(plan, tried)
    if choice is not None and not choice.lost:
        found |= {seed_run(seed, choice.rate): (choice.rate, seed) for seed in plan.seeds}
    return found


def _tried(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> dict[float, Trained | None]:
    """What came of every rate of the grid and, once that is known and the best lies at an end, of those beyond it.

    Of a single rate nothing: it is taken as it is.
    """
    if len(plan.rates) == 1:
        return {}
    tried = {rate: folder.outcome(entrant, rate_run(rate)) for rate in plan.rates}
    for _ in range(plan.widen):
        choice = _choice(plan, tried)
        if choice is None or not choice.edge:
            break
        rate = beyond(choice.rate, tried)
        tried[rate] = folder.outcome(entrant, rate_run(rate))
    return tried


def _choice(plan: Plan, tried: Mapping[float, Trained | None]) -> Choice | None:
    """The best of what was tried; None where something is missing."""
    if not tried:
        return Choice(plan.rates[0])
    known = {rate: run for rate, run in tried.items() if run is not None}
    if len(known) < len(tried):
        return None
    scores = {rate: score_of(run, plan.score, known.values()) for rate, run in sorted(known.items())}
    stopped = {rate for rate, run in known.items() if run.made.get("state") == "stopped"}
    worst = -math.inf if plan.more else math.inf  # a rate that breaks a model is no choice, however little others learn
    counted = {rate: worst if score is None or rate in stopped else score for rate, score in scores.items()}
    rate, lost = best(counted, more=plan.more), len(stopped) == len(known)
    reason = str(known[min(known)].made.get("reason") or "") if lost else ""
    return Choice(rate, on_edge(rate, known), scores, lost, reason)


def scored(plan: Plan, folder: ArenaFolder, entrant: Entrant, choice: Choice | None) -> dict[int, Trained]:
    """Outcomes by seed that were trained at the chosen rate."""
    if choice is None:
        return {}
    found = {seed: folder.outcome(entrant, seed_run(seed, choice.rate)) for seed in plan.seeds}
    return {seed: run for seed, run in found.items() if run is not None}


def outcomes(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> dict[str, Trained]:
    """What came of the runs that are wanted, by name; without those that are not at their end yet."""
    found = {run: folder.outcome(entrant, run) for run in wanted_runs(plan, folder, entrant)}
    return {run: trained for run, trained in found.items() if trained is not None}


def complete(plan: Plan, folder: ArenaFolder, entrant: Entrant) -> bool:
    """Whether there is nothing left to train for an entrant."""
    choice = chosen(plan, folder, entrant)
    if choice is None:
        return False
    return choice.lost or len(scored(plan, folder, entrant, choice)) == len(plan.seeds)


def left_over(plan: Plan, folder: ArenaFolder, call: str) -> list[Entrant]:
    """Who is not done yet, nor known to be unable to."""
    return [
        entrant
        for entrant in plan.entrants
        if not is_unable(folder.trouble(entrant), call) and not complete(plan, folder, entrant)
    ]


def is_unable(trouble: Mapping[str, Any] | None, call: str) -> bool:
    """Whether there is nothing more to be tried in a call: its model refuses it, or it failed in this very call.

    >>> [is_unable({"state": state, "call": "of another"}, "mine") for state in ("refused", "failed")]
    [True, False]
    """
    # Of several commands the last one to look writes a refusal down, which is the same for all of them.
    return trouble is not None and (trouble["state"] == "refused" or trouble["call"] == call)
