"""In trained models tokens do not always become more alike with depth.

All changes are counted so that above 0 means more alike, whatever the definition, and are differences within
sequences. Tokens end less alike, or a layer makes them so, where the whole interval says it both with all content
tokens and without those whose norm is massive at some layer: in a causal language model the first token can decide
every number that weighs by norm. One among many intervals lies on the wrong side by chance: so those from first to last
hold at 95 % for all lineages together, and those of single layers for all layers and definitions of a model.

The first rule counted models in which any layer makes tokens less alike by any of four definitions. That can hardly
fail: of a hundred layers and four definitions some go down in nearly every model. It is reported now, and the way from
first to last decides, by mean cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.evidence.bench import Bench, Specimen
from unsmooth.evidence.by_sequence import by_sequence
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Outcome, Wording
from unsmooth.evidence.interval import Interval, level, share
from unsmooth.evidence.specimens import at_hand, family
from unsmooth.functional import METRICS
from unsmooth.models import with_random_weights

# Four numbers, and not one in four guises: HFC/LFC and the Frobenius residual are functions of token_similarity.
COSINE = "mean_cosine"
DEFINITIONS = (COSINE, "token_similarity", "effective_rank", "stable_rank")
VIEWS = ("every", "ordinary")
LINEAGES = 2

Model = Mapping[str, Any]


@claim
class SimilarityNotInevitable(Claim):
    """Steps between layers and the way from first to last, over sequences, beside the architecture with random weights.

    Shares are over lineages, each by the first of its models: those trained from one another are one case.
    """

    id: ClassVar[str] = "similarity-not-inevitable"
    number: ClassVar[int] = 7
    section: ClassVar[Section] = "trained models"
    quote: ClassVar[str] = (
        "We find that there are cases where feature similarity increases but, contrary to prior results, this is "
        "not inevitable, even for existing pre-trained models."
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v3", "abstract")
    reading: ClassVar[str] = (
        "There are models that others trained in which the mean cosine of the tokens is lower after the last layer "
        "than before the first."
    )
    differs: ClassVar[str] = (
        "The paper's measure and its models were not at hand. Of the sentence's two halves this is the second; the "
        "first is similarity-increases. A single layer that makes tokens less alike, by one of four definitions, "
        "is too little, since it can hardly fail: that is reported."
    )
    stated_scale: ClassVar[bool] = True
    would_decide: ClassVar[str] = (
        "The kinds of models that the paper is reported to look at, a ViT-B/16 and a DeiT-B among them, on 64 "
        "images each: minutes of a CPU once their weights are at hand."
    )
    for_if: ClassVar[str] = (
        f"in at least {LINEAGES} models that others trained, not from one another, the interval over sequences of the "
        "mean cosine at the end minus at the beginning lies below 0, at 95 % for all lineages together, with and "
        "without massive tokens"
    )
    against_if: ClassVar[str] = "never: one model is enough for the sentence, so no number of others is against it"

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """Draws of the random weights."""
        return bench.pick((0,), (0,), (0, 1, 2))

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Means and standard errors over sequences of every step, for each model and definition."""
        return {"models": [_measured(one, self.seeds(bench)) for one in at_hand(bench)]}

    def judge(self, measured: Measured) -> Judgement:
        """Count lineages."""
        return judge_cases(measured, "less alike")

    def figure(self, measured: Measured) -> Figure:
        """Curves, the largest fall of each model, and the last layer beside random weights."""
        models = measured["models"]
        return Figure(
            "Mean cosine of the tokens from the first layer (0) to the last (1) of each model; for each model the step "
            "over which it falls most, with the interval that holds for all steps together; and the last layer "
            "less that of the same architecture with random weights.",
            [
                Panel("by depth", "share of depth", "mean cosine", curves(models)),
                Panel("largest fall over a layer", "model", "change of mean cosine", [_steepest(models)], reference=0),
                Panel("beside random weights", "model", "mean cosine at the end", [_beside(models)], reference=0),
            ],
        )


def judge_cases(measured: Measured, said: Literal["more alike", "less alike"]) -> Judgement:
    """Whether there are lineages that end so by mean cosine; the other definitions and single layers are reported."""
    others = _one_each(model for model in measured["models"] if model["trained"] and not model["ours"])
    holds = {"more alike": _ends_more_alike, "less alike": _ends_less_alike}[said]
    cases = _those(others, holds, COSINE)
    outcome: Outcome = "for" if len(cases) >= LINEAGES else "undecided"
    what = f"share of models that end {said} than they begin, by {COSINE}"
    findings = [Finding(what, _share(cases, others), outcome, intervals=max(1, 2 * len(others)))]
    for about, counted in _reported().items() if others else ():
        findings += [
            Finding(f"share of models {about}, by {name}", _share(_those(others, counted, name), others))
            for name in DEFINITIONS
            if (counted, name) != (holds, COSINE)
        ]
    return Judgement(tuple(findings), _words(others, measured["models"]), outcome)


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
    """Student-t interval that holds for `together` of its kind at once."""
    from scipy.stats import t

    mean, error = moments
    half = float(t.ppf(1 - (1 - level()) / 2 / together, sequences - 1)) * error
    return Interval(mean, mean - half, mean + half, sequences)


def _steps(model: Model, name: str, view: str) -> list[Interval]:
    """Intervals of all steps between layers, together with all definitions."""
    steps = (model["by"][name][view] or model["by"][name]["every"])["steps"]
    return [_interval(one, model["sequences"], len(steps) * len(DEFINITIONS)) for one in steps]


def _ends(model: Model, name: str, together: int) -> list[Interval]:
    """From first to last, with all tokens and without massive ones."""
    by = model["by"][name]
    return [_interval((by[view] or by["every"])["ends"], model["sequences"], together) for view in VIEWS]


def _falls(model: Model, name: str, together: int) -> bool:
    """Whether some layer makes tokens less alike, with and without massive ones."""
    views = zip(*(_steps(model, name, view) for view in VIEWS), strict=True)
    return any(all(one.high < 0 for one in pair) for pair in views)


def _ends_less_alike(model: Model, name: str, together: int) -> bool:
    return all(one.high < 0 for one in _ends(model, name, together))


def _ends_more_alike(model: Model, name: str, together: int) -> bool:
    return all(one.low > 0 for one in _ends(model, name, together))


def _less_than_random(model: Model, name: str, together: int) -> bool:
    return _interval(model["by"][name]["beside_random"], model["sequences"], together).high < 0


def _reported() -> dict[str, Callable[[Model, str, int], bool]]:
    return {
        "in which some layer makes tokens less alike": _falls,
        "that end less alike than they begin": _ends_less_alike,
        "that end more alike than they begin": _ends_more_alike,
        "that end less alike than with random weights": _less_than_random,
    }


def _those(models: Sequence[Model], holds: Callable[[Model, str, int], bool], name: str) -> list[Model]:
    return [model for model in models if holds(model, name, len(models))]


def _one_each(models: Any) -> list[Model]:
    """The first model of each lineage."""
    first: dict[str, Model] = {}
    for model in models:
        first.setdefault(model["lineage"], model)
    return list(first.values())


def _share(hits: Sequence[Model], of: Sequence[Model]) -> Interval:
    """Nothing is known of the share where there are none."""
    return share(len(hits), len(of)) if of else Interval(0.0, 0.0, 1.0, 0)


def _words(others: Sequence[Model], everything: Sequence[Model]) -> str:
    if not others:
        names = ", ".join(model["name"] for model in everything)
        return f"No model that others trained was at hand, only {names}."
    down, up, random, some = (
        len(_those(others, holds, COSINE)) for holds in (_ends_less_alike, _ends_more_alike, _less_than_random, _falls)
    )
    steps = [step for model in others for step in model["by"][COSINE]["every"]["steps"]]
    return (
        f"By mean cosine {up} of {len(others)} lineages of models that others trained end more alike than they begin "
        f"and {down} less; {random} end less alike than with random weights. It rises over "
        f"{sum(mean > 0 for mean, _ in steps)} of {len(steps)} layers, and in {some} lineages some layer surely lowers "
        "it. None of the models is a ViT or a DeiT, of which the paper is reported to have looked at some."
    )


def curves(models: Sequence[Model]) -> list[Series]:
    """Mean cosine by share of depth."""
    return [_curve(model) for model in models]


def ends(models: Sequence[Model]) -> Series:
    """Mean cosine at the end minus at the beginning, with all tokens."""
    found = [_interval(model["by"][COSINE]["every"]["ends"], model["sequences"]) for model in models]
    return _points("end minus beginning", models, found)


def _curve(model: Model) -> Series:
    curve = model["by"][COSINE]["curve"]
    depth = [layer / (len(curve) - 1) for layer in range(len(curve))]
    return Series(model["name"], depth, curve, mark="line" if model["trained"] else "dashed")


def _steepest(models: Sequence[Model]) -> Series:
    steps = [_steps(model, COSINE, VIEWS[0]) for model in models]
    return _points("largest fall", models, [min(found, key=lambda one: one.value) for found in steps])


def _beside(models: Sequence[Model]) -> Series:
    found = [_interval(model["by"][COSINE]["beside_random"], model["sequences"]) for model in models]
    return _points("trained less random", models, found)


def _points(name: str, models: Sequence[Model], found: Sequence[Interval]) -> Series:
    return with_intervals(name, [str(model["name"]) for model in models], found, "points")
