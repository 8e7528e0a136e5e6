"""What the claims about deep models keep of their studies, and how they read it.

A variant is called after its kind and its depth, "post-24". At the smaller scales it keeps its name and is shallower;
how deep it was is written beside it. Cosines are between patches: the class token is no part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.figure import Mark, Series, with_intervals
from unsmooth.evidence.interval import over_seeds
from unsmooth.evidence.rates import on_edge
from unsmooth.evidence.records import Trained

DEPTHS = ("12", "24", "40")
MOMENTS = {"before training": 0, "after training": -1}
Measured = Mapping[str, Any]


def kept_by_depth(bench: Bench, keep: Callable[[str], bool]) -> dict[str, Any]:
    """Of variants to `keep`: depth, rate, and by seed accuracy and mean cosine by layer; accuracy at probed rates."""
    from unsmooth.evidence.studies.depth_rates import probed

    trained = bench.study("depth_seeds")
    first = next(iter(next(iter(trained.values())).values()))
    return {
        "chance": first.chance,
        "variants": {variant: _kept(by_seed) for variant, by_seed in trained.items() if keep(variant)},
        "probes": {
            variant: {f"{rate:g}": accuracy for rate, accuracy in by_rate.items()}
            for variant, by_rate in probed(bench).items()
            if keep(variant)
        },
    }


def _kept(by_seed: Mapping[int, Trained]) -> dict[str, Any]:
    """A run that was stopped has its last measurement in place of one after training."""
    config = next(iter(by_seed.values())).config
    return {
        "depth": config["network"]["depth"],
        "rate": config["optimiser"]["lr"],
        "precision": config["engine"]["precision"],
        "stopped": sum(run.made.get("state") == "stopped" for run in by_seed.values()),
        "accuracy": {str(seed): run.accuracy for seed, run in by_seed.items()},
        **{
            moment: {str(seed): run.layers("mean_cosine", place) for seed, run in by_seed.items()}
            for moment, place in MOMENTS.items()
        },
    }


def has(measured: Measured, *variants: str) -> bool:
    """Whether all of them were trained."""
    return all(variant in measured["variants"] for variant in variants)


def depth(measured: Measured, variant: str) -> int:
    """How many blocks it had."""
    return int(measured["variants"][variant]["depth"])


def accuracies(measured: Measured, variant: str) -> dict[int, float]:
    """Accuracy by seed."""
    return {int(seed): float(value) for seed, value in measured["variants"][variant]["accuracy"].items()}


def mean_accuracy(measured: Measured, variant: str) -> float:
    """Accuracy, mean over seeds."""
    return over_seeds(list(accuracies(measured, variant).values())).value


def last_cosines(measured: Measured, variant: str, moment: str) -> dict[int, float]:
    """Mean cosine at the last layer by seed, of those that have one: weights that are no numbers have none."""
    by_seed = measured["variants"][variant][moment]
    return {int(seed): float(layers[-1]) for seed, layers in by_seed.items() if layers[-1] is not None}


def unsettled(measured: Measured, variants: Iterable[str]) -> list[str]:
    """Why runs cannot decide between variants: a rate at an end of its grid, or a precision that blurs alike tokens.

    Tokens that differ by less than 4e-3 of their norm are one token to bfloat16, and 24 post-norm blocks with Xavier's
    weights leave them 2e-3.
    """
    found = []
    for variant in variants:
        rate, grid = measured["variants"][variant]["rate"], list(map(float, measured["probes"].get(variant, ())))
        if on_edge(rate, grid):
            found.append(f"the best rate of {variant}, {rate:g}, is at an end of its grid")
    # What was kept of a run without its precision was trained in bfloat16.
    lower = {measured["variants"][variant].get("precision", "bfloat16") for variant in variants} - {"float32"}
    return [*found, *(f"trained in {precision}" for precision in sorted(lower))]


def best_rates(measured: Measured) -> str:
    """The learning rates in words, and what they were chosen by; one at the end of its grid might be better beyond it.

    >>> variants = {"post-24": {"rate": 1e-4}, "pre-24": {"rate": 3e-4}}
    >>> told = best_rates({"variants": variants, "probes": {"pre-24": {"0.0001": 0.5, "0.0003": 0.6, "0.001": 0.5}}})
    >>> told.split(": ")
    ['Best rates of 0.0001, 0.0003, 0.001 by test accuracy in runs of a seed that is not scored', 'post-24 0.0001, ...']
    """
    grid = ", ".join(next(iter(measured["probes"].values())))
    chosen = ", ".join(f"{variant} {one['rate']:g}" for variant, one in measured["variants"].items())
    return f"Best rates of {grid} by test accuracy in runs of a seed that is not scored: {chosen}."


def by_layer(measured: Measured, variant: str, moment: str, mark: Mark = "line") -> Series:
    """Mean cosine by layer with its interval."""
    runs = [layers for layers in measured["variants"][variant][moment].values() if None not in layers]
    intervals = [over_seeds(list(values)) for values in zip(*runs, strict=True)]
    return with_intervals(variant, list(range(len(intervals))), intervals, mark)
