"""In trained models tokens do not always become more alike with depth.

All changes are counted so that above 0 means more alike, whatever the definition, and are differences within
sequences. A layer counts as making tokens less alike where the whole interval says so both with all content tokens and
without those whose norm is massive at some layer: in a causal language model the first token can decide every number
that weighs by norm. A model has many layers and definitions, and one among many intervals lies on the wrong side by
chance: so intervals hold at 95 % for all of them together (Bonferroni).

Four of the models that `benchmarks.evidence_models` brings had been scanned before this rule was written, and it was
known that their mean cosine ends higher than it begins and that in two of them it falls on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.by_sequence import by_sequence
from unsmooth.evidence.claim import P1, Claim, Measured, claim
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Verdict
from unsmooth.evidence.interval import LEVEL, Interval, share
from unsmooth.evidence.specimen import Specimen
from unsmooth.evidence.specimens import at_hand, family
from unsmooth.functional import METRICS
from unsmooth.models import with_random_weights

# Four numbers, and not one in four guises: HFC/LFC and the Frobenius residual are functions of token_similarity.
DEFINITIONS = ("mean_cosine", "token_similarity", "effective_rank", "stable_rank")
VIEWS = ("every", "ordinary")
LINEAGES = 2

Model = Mapping[str, Any]


@claim
class SimilarityNotInevitable(Claim):
    """Steps between layers and the way from first to last, over sequences, beside the architecture with random weights.

    Shares are over lineages, each by the first of its models: those trained from one another are one case.
    """

    id: ClassVar[str] = "similarity-not-inevitable"
    number: ClassVar[int] = 1
    source: ClassVar[str] = f"{P1}, its look at pre-trained models"
    statement: ClassVar[str] = "In trained models the similarity of tokens does not always rise with depth."
    confirmed_if: ClassVar[str] = (
        f"at least {LINEAGES} models that others trained, not from one another, have a layer, or a way from first to "
        "last, over which tokens become less alike by at least one of four definitions, with and without massive "
        "tokens: the whole interval over sequences, at 95 % for all layers and definitions of a model together"
    )
    refuted_if: ClassVar[str] = (
        f"in all models that others trained, at least {LINEAGES} not from one another, tokens end more alike than they "
        "begin by every definition (such an interval each), and no layer makes them less alike"
    )

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """Draws of the random weights."""
        return bench.pick((0,), (0,), (0, 1, 2))

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Means and standard errors over sequences of every step, for each model and definition."""
        return {"models": [_measured(one, self.seeds(bench)) for one in at_hand(bench)]}

    def judge(self, measured: Measured) -> Judgement:
        """Count lineages."""
        others = _one_each(model for model in measured["models"] if model["trained"] and not model["ours"])
        falling = [model for model in others if any(_falls(model, name) for name in DEFINITIONS)]
        rule = _rule(others, falling)
        said = "trained by others in which tokens become less alike over some layer"
        findings = [Finding(f"share of models {said}, by any definition", _share(falling, others), rule)]
        for what, holds in _reported().items() if others else ():
            findings += [
                Finding(f"share of models {what}, by {name}", _share(_those(others, holds, name), others))
                for name in DEFINITIONS
            ]
        return Judgement(tuple(findings), _words(others, falling, measured["models"]), rule)

    def figure(self, measured: Measured) -> Figure:
        """Curves, the largest fall of each model, and the last layer beside random weights."""
        models = measured["models"]
        return Figure(
            "Mean cosine of the tokens from the first layer (0) to the last (1) of each model; for each model the step "
            "over which it falls most, with the interval that holds for all steps together; and the last layer "
            "less that of the same architecture with random weights. A model counts where its interval lies below 0.",
            [
                Panel("by depth", "share of depth", "mean cosine", [_curve(model) for model in models]),
                Panel("largest fall over a layer", "model", "change of mean cosine", [_steepest(models)], reference=0),
                Panel("beside random weights", "model", "mean cosine at the end", [_beside(models)], reference=0),
            ],
        )


def _measured(specimen: Specimen, seeds: Sequence[int]) -> dict[str, Any]:
    model, data = specimen.load(), specimen.data()
    found = by_sequence(model, data, DEFINITIONS, **specimen.options)
    twins = [by_sequence(with_random_weights(model, seed), data, DEFINITIONS, **specimen.options) for seed in seeds]
    random = {name: torch.stack([twin.every[name] for twin in twins]).mean(dim=0) for name in DEFINITIONS}
    whole_S = found.whole_S & torch.stack(list(random.values())).isfinite().all(dim=0).all(dim=0)
    sequences = int(whole_S.sum())
    if sequences < 2:
        raise expected(f"two sequences or more that {specimen.name} can be measured on", sequences, "more data")
    return {
        "name": specimen.name,
        "lineage": family(specimen),
        "ours": specimen.ours,
        "trained": specimen.trained,
        "sequences": sequences,
        "massive_tokens": float(found.massive_S[whole_S].double().mean()),
        "by": {
            name: _numbers(name, *(values[name][:, whole_S] for values in (found.every, found.ordinary, random)))
            for name in DEFINITIONS
        },
    }


def _numbers(name: str, every_LS: Tensor, ordinary_LS: Tensor, random_LS: Tensor) -> dict[str, Any]:
    return {
        "curve": every_LS.mean(dim=1).tolist(),
        "every": _changes(every_LS, name),
        # Not written twice where nothing is massive.
        "ordinary": None if torch.equal(every_LS, ordinary_LS) else _changes(ordinary_LS, name),
        "random": {"curve": random_LS.mean(dim=1).tolist(), "ends": _changes(random_LS, name)["ends"]},
        "beside_random": _moments((every_LS - random_LS)[-1] * _sign(name)),
    }


def _sign(name: str) -> int:
    return 1 if METRICS[name].rises_when_alike else -1


def _changes(values_LS: Tensor, name: str) -> dict[str, Any]:
    """Steps between layers and the way from first to last: each a mean with its standard error."""
    alike_LS = values_LS * _sign(name)
    return {
        "steps": [_moments(step_S) for step_S in alike_LS.diff(dim=0)],
        "ends": _moments(alike_LS[-1] - alike_LS[0]),
    }


def _moments(values_S: Tensor) -> list[float]:
    return [float(values_S.mean()), float(values_S.std(correction=1)) / len(values_S) ** 0.5]


def _interval(moments: Sequence[float], sequences: int, together: int = 1) -> Interval:
    """Student-t interval that holds at 95 % for `together` of its kind at once."""
    from scipy.stats import t

    mean, error = moments
    half = float(t.ppf(1 - (1 - LEVEL) / 2 / together, sequences - 1)) * error
    return Interval(mean, mean - half, mean + half, sequences)


def _simultaneous(model: Model, name: str, view: str) -> list[Interval]:
    """Intervals of all steps, and last that from first to last."""
    changes = model["by"][name][view] or model["by"][name]["every"]
    every = [*changes["steps"], changes["ends"]]
    return [_interval(one, model["sequences"], len(every) * len(DEFINITIONS)) for one in every]


def _falls(model: Model, name: str) -> bool:
    """Whether some layer, or all of them together, make tokens less alike, with and without massive ones."""
    views = zip(*(_simultaneous(model, name, view) for view in VIEWS), strict=True)
    return any(all(one.high < 0 for one in pair) for pair in views)


def _ends_less_alike(model: Model, name: str) -> bool:
    return all(_simultaneous(model, name, view)[-1].high < 0 for view in VIEWS)


def _ends_more_alike(model: Model, name: str) -> bool:
    return all(_simultaneous(model, name, view)[-1].low > 0 for view in VIEWS)


def _less_than_random(model: Model, name: str) -> bool:
    return _interval(model["by"][name]["beside_random"], model["sequences"], len(DEFINITIONS)).high < 0


def _reported() -> dict[str, Callable[[Model, str], bool]]:
    return {
        "in which some layer makes tokens less alike": _falls,
        "that end less alike than they begin": _ends_less_alike,
        "that end more alike than they begin": _ends_more_alike,
        "that end less alike than with random weights": _less_than_random,
    }


def _rule(others: Sequence[Model], falling: Sequence[Model]) -> Verdict:
    if len(falling) >= LINEAGES:
        return "confirmed"
    rising = all(_ends_more_alike(model, name) for model in others for name in DEFINITIONS)
    return "refuted" if len(others) >= LINEAGES and rising and not falling else "undecided"


def _those(models: Sequence[Model], holds: Callable[[Model, str], bool], name: str) -> list[Model]:
    return [model for model in models if holds(model, name)]


def _one_each(models: Any) -> list[Model]:
    """The first model of each lineage."""
    first: dict[str, Model] = {}
    for model in models:
        first.setdefault(model["lineage"], model)
    return list(first.values())


def _share(hits: Sequence[Model], of: Sequence[Model]) -> Interval:
    """Nothing is known of the share where there are none."""
    return share(len(hits), len(of)) if of else Interval(0.0, 0.0, 1.0, 0)


def _words(others: Sequence[Model], falling: Sequence[Model], everything: Sequence[Model]) -> str:
    if not others:
        names = ", ".join(model["name"] for model in everything)
        return f"No model that others trained was at hand, only {names}."
    cosine = DEFINITIONS[0]
    down, up = (len(_those(others, holds, cosine)) for holds in (_ends_less_alike, _ends_more_alike))
    random = len(_those(others, _less_than_random, cosine))
    steps = [step for model in others for step in model["by"][cosine]["every"]["steps"]]
    robust = sum(len(_those(others, _falls, name)) >= LINEAGES for name in DEFINITIONS)
    return (
        f"Some layer makes tokens less alike in {len(falling)} of {len(others)} lineages of models that others trained "
        f"({robust} of {len(DEFINITIONS)} definitions have at least {LINEAGES}). By mean cosine {up} end more alike "
        f"than they begin and {down} less, {random} less alike than with random weights; it rises over "
        f"{sum(mean > 0 for mean, _ in steps)} of {len(steps)} layers."
    )


def _curve(model: Model) -> Series:
    curve = model["by"][DEFINITIONS[0]]["curve"]
    depth = [layer / (len(curve) - 1) for layer in range(len(curve))]
    return Series(model["name"], depth, curve, mark="line" if model["trained"] else "dashed")


def _steepest(models: Sequence[Model]) -> Series:
    steps = [_simultaneous(model, DEFINITIONS[0], VIEWS[0])[:-1] for model in models]
    return _points("largest fall", models, [min(found, key=lambda one: one.value) for found in steps])


def _beside(models: Sequence[Model]) -> Series:
    found = [_interval(model["by"][DEFINITIONS[0]]["beside_random"], model["sequences"]) for model in models]
    return _points("trained less random", models, found)


def _points(name: str, models: Sequence[Model], found: Sequence[Interval]) -> Series:
    return with_intervals(name, [str(model["name"]) for model in models], found, "points")
