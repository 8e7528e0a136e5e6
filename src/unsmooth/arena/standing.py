"""Where every entrant stands: score, difference to the plain model, similarity by layer, cost, failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from unsmooth.arena.plan import PLAIN, Entrant, Plan
from unsmooth.arena.results import ArenaFolder, Choice, chosen, guessing, outcomes, score_of, scored
from unsmooth.errors import UnsmoothError
from unsmooth.evidence.interval import Interval, over_seeds, paired
from unsmooth.evidence.ledger import minutes_of
from unsmooth.evidence.records import Trained, write_json
from unsmooth.training.plain import to_plain
from unsmooth.training.stopwatch import Timing

Verdict = Literal["better", "worse", "no difference shown", ""]
METRIC = "mean_cosine"


@dataclass(frozen=True)
class Standing:
    """One entrant.

    Attributes:
        entrant: Which.
        choice: Its learning rate; None where it was not chosen yet.
        scores: Seed to score.
        guessed: Seeds whose runs lost their numbers, and that count with the score of guessing.
        score: Mean over seeds with its interval; None where there is none.
        difference: To the plain model with the same seed; None for that itself, and where either is missing.
        verdict: "better" or "worse" where the whole interval of the difference lies on one side of 0; empty where there
            is no interval, as with one seed, and where it does not rest on all seeds of the plan.
        start: Mean cosine by layer before training, embedding first, over seeds; empty where nothing was measured.
        end: After training.
        timing: What a step costs.
        parameters: How many.
        failures: In words: refused, failed, lost its numbers, each with the reason.
        done: Whether nothing is left to train.
    """

    entrant: Entrant
    choice: Choice | None = None
    scores: Mapping[int, float] = field(default_factory=dict)
    guessed: tuple[int, ...] = ()
    score: Interval | None = None
    difference: Interval | None = None
    verdict: Verdict = ""
    start: Sequence[Interval] = ()
    end: Sequence[Interval] = ()
    timing: Timing | None = None
    parameters: int | None = None
    failures: tuple[str, ...] = ()
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        choice, timing = self.choice, self.timing
        return {
            "model": self.entrant.model,
            "remedy": self.entrant.remedy,
            "done": self.done,
            "rate": choice.rate if choice else None,
            "rate_at_edge": choice.edge if choice else None,
            "rates": {f"{rate:g}": score for rate, score in choice.scores.items()} if choice else {},
            "scores": {str(seed): score for seed, score in self.scores.items()},
            "score": self.score.to_json() if self.score else None,
            "difference": self.difference.to_json() if self.difference else None,
            "verdict": self.verdict or None,
            "cosine_at_start": [one.to_json() for one in self.start],
            "cosine_at_end": [one.to_json() for one in self.end],
            "seconds_of_a_step": timing.seconds if timing else None,
            "step_time_over_plain": timing.ratio if timing else None,
            "memory_bytes": timing.memory if timing else None,
            "parameters": self.parameters,
            "failures": list(self.failures),
        }


@dataclass(frozen=True)
class Standings:
    """All entrants, and what they were compared in.

    Attributes:
        plan: What was wanted.
        lines: In the order of the plan.
        steps: Model to the number of steps of its scored runs; without those that were not timed yet.
        made: Commits, hardware, versions and days of all runs; GPU minutes.
    """

    plan: Plan
    lines: tuple[Standing, ...]
    steps: Mapping[str, int]
    made: Mapping[str, Any]

    def of(self, model: str) -> list[Standing]:
        """The entrants on one model."""
        return [line for line in self.lines if line.entrant.model == model]

    def to_json(self) -> dict[str, Any]:
        """Plain data: what `arena.json` holds and the command prints."""
        plan = self.plan
        return {
            "recipe": next(iter(plan.models.values())).recipe,
            "score": plan.score,
            "more_is_better": plan.more,
            "rates": list(plan.rates),
            "rates_beyond": plan.widen,
            "seeds": list(plan.seeds),
            "seed_of_rates": plan.probe_seed,
            "budget": plan.budget.text if plan.budget else None,
            "length_of_rates": plan.probe,
            "hold_out_of_rates": plan.hold_out,
            "models": {
                name: {"steps": self.steps.get(name), "settings": to_plain(config)}
                for name, config in plan.models.items()
            },
            "standings": [line.to_json() for line in self.lines],
            "made": dict(self.made),
        }

    def write(self, folder: ArenaFolder) -> None:
        """As OUT/arena.json."""
        write_json(folder.path / "arena.json", self.to_json())


def standings(plan: Plan, folder: ArenaFolder) -> Standings:
    """What is known by now, of runs that are there."""
    lines, every = [], list[Trained]()
    for model in plan.models:
        entrants = plan.on(model)
        choices = {entrant: chosen(plan, folder, entrant) for entrant in entrants}
        runs = {entrant: scored(plan, folder, entrant, choice) for entrant, choice in choices.items()}
        beside = [run for by_seed in runs.values() for run in by_seed.values()]
        plain: Mapping[int, float] = {}
        for entrant in entrants:
            line = _standing(plan, folder, entrant, choices[entrant], runs[entrant], beside, plain)
            plain = line.scores if entrant.remedy == PLAIN else plain
            lines.append(line)
            every += outcomes(plan, folder, entrant).values()
    steps = {model: int(known["steps"]) for model in plan.models if (known := folder.model(model)) is not None}
    return Standings(plan, tuple(lines), steps, _made(every))


def _standing(
    plan: Plan,
    folder: ArenaFolder,
    entrant: Entrant,
    choice: Choice | None,
    runs: Mapping[int, Trained],
    beside: Sequence[Trained],
    plain: Mapping[int, float],
) -> Standing:
    lost = choice is not None and choice.lost
    found = {seed: score_of(run, plan.score, beside) for seed, run in runs.items()}
    if lost:
        guess = guessing(to_plain(plan.models[entrant.model]), plan.score, beside)
        found = dict.fromkeys(plan.seeds, guess)
    scores = {seed: score for seed, score in found.items() if score is not None}
    both = bool(scores.keys() & plain.keys()) and entrant.remedy != PLAIN
    difference = paired(scores, plain) if both else None
    whole = difference is not None and difference.count == len(plan.seeds)
    return Standing(
        entrant=entrant,
        choice=choice,
        scores=scores,
        guessed=tuple(seed for seed in scores if lost or _stopped(runs[seed])),
        score=over_seeds(list(scores.values())) if scores else None,
        difference=difference,
        verdict=verdict(difference, plan.more) if difference and whole else "",
        start=_curve(runs.values(), 0),
        end=_curve([run for run in runs.values() if run.made.get("state") == "finished"], -1),
        timing=folder.timing(entrant),
        parameters=next((run.made.get("parameters") for run in runs.values()), None),
        failures=tuple(_failures(plan, folder.trouble(entrant), choice, runs, found)),
        done=lost or len(runs) == len(plan.seeds),
    )


def _stopped(run: Trained) -> bool:
    return run.made.get("state") == "stopped"


def verdict(difference: Interval, more: bool) -> Verdict:
    """What a difference shows: nothing, unless its whole interval lies on one side of 0.

    >>> up = Interval(1.0, 0.5, 1.5, 3)
    >>> verdict(up, True), verdict(up, False), verdict(Interval(1.0, -0.5, 2.5, 3), True)
    ('better', 'worse', 'no difference shown')
    >>> verdict(Interval(1.0, -math.inf, math.inf, 1), True)  # one seed has no interval
    ''
    """
    if math.isinf(difference.low) and math.isinf(difference.high):
        return ""
    if difference.low > 0:
        return "better" if more else "worse"
    if difference.high < 0:
        return "worse" if more else "better"
    return "no difference shown"


def _failures(
    plan: Plan,
    trouble: Mapping[str, Any] | None,
    choice: Choice | None,
    runs: Mapping[int, Trained],
    scores: Mapping[int, float | None],
) -> Iterable[str]:
    lost = choice is not None and choice.lost
    if trouble is not None:
        yield f"{trouble['state']}: {trouble['reason']}"
    if choice is not None and choice.lost:
        yield f"no finite loss at any rate: {choice.reason}"
    stopped = {seed: run for seed, run in runs.items() if _stopped(run)}
    if stopped:
        seeds = ", ".join(map(str, stopped))
        first = next(iter(stopped.values())).made
        noticed = f"noticed after {first.get('done')} of {first.get('steps')} steps"
        yield f"seed {seeds} stopped: {first.get('reason')}, {noticed}"
    without = [seed for seed, score in scores.items() if score is None]
    if any(lost or seed in stopped for seed in without):
        yield f"no verdict: which {plan.score} guessing has is not known here, so that a lost run counts nowhere"
    if unmeasured := [seed for seed in without if not lost and seed not in stopped]:
        yield f"seed {', '.join(map(str, unmeasured))} without a finite {plan.score}: it counts nowhere"


def _curve(runs: Iterable[Trained], moment: int) -> list[Interval]:
    """Mean cosine by layer over seeds; of runs whose layers all have one."""
    measured = [run.layers(METRIC, moment) for run in runs if run.similarity.get(METRIC)]
    whole = [layers for layers in measured if None not in layers]
    try:
        return [over_seeds(values) for values in zip(*whole, strict=True)]
    except UnsmoothError:
        return []


def _made(runs: Sequence[Trained]) -> dict[str, Any]:
    def all_of(key: str) -> list[Any]:
        return list(dict.fromkeys(str(run.made.get(key)) for run in runs))

    commits = dict.fromkeys(
        (str(run.made.get("commit")), bool(run.made.get("changed"))) for run in runs if run.made.get("commit")
    )
    return {
        "commits": [commit + ("+" if changed else "") for commit, changed in commits],
        "hardware": all_of("hardware"),
        "versions": runs[-1].made.get("versions") if runs else None,
        "when": all_of("when"),
        "runs": len(runs),
        "gpu_minutes": round(minutes_of(runs), 2),
        "side_by_side": sorted({int(run.made.get("side_by_side") or 1) for run in runs}),
        "data": _distinct(run.made.get("data") for run in runs),
    }


def _distinct(items: Iterable[Any]) -> list[Any]:
    found = list[Any]()
    for item in items:
        if item is not None and item not in found:
            found.append(item)
    return found
