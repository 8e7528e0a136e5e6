"""What a symmetric H costs: P1's reviewers asked whether its first parametrisation gives up too much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, ClassVar

from unsmooth.errors import expected
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Outcome, Wording, above, judged
from unsmooth.evidence.interval import Interval, over_seeds, paired
from unsmooth.evidence.records import Trained
from unsmooth.numbers import Precision

SYMMETRIC = ("gram", "orthogonal")
BASES = (*SYMMETRIC, "general")
MARGIN = -1.0
"""Percentage points of accuracy that would not be called a cost."""
SHAPES = {
    "condition": "largest condition number of V at any layer",
    "symmetric": "largest eigenvalue of (H + Hᵀ)/2 at any layer",
    "asymmetry": "largest asymmetry of H at any layer",
    "outside": "how far an eigenvalue of H is outside [−1, 0] at most",
}


@claim
class BasesCompared(Claim):
    """Sharpening with three bases, paired by seed. A run whose loss was no number any more counts as guessing."""

    id: ClassVar[str] = "bases-compared"
    number: ClassVar[int] = 30
    section: ClassVar[Section] = "our own"
    quote: ClassVar[str] = "A symmetric H costs no accuracy against the general basis."
    wording: ClassVar[Wording] = "ours"
    source: ClassVar[Source] = Source("P1", "", "a question of the public reviews of its first version")
    reading: ClassVar[str] = (
        "Restricting a sharpened H to symmetric matrices, by a Gram matrix with one scale for all eigenvalues or "
        "by an orthogonal basis, costs no accuracy against the general basis, and keeps tokens apart at least as "
        "well."
    )
    would_decide: ClassVar[str] = "The lever study, which caps the eigenvalues of the Gram form one by one."
    for_if: ClassVar[str] = (
        "the 95 % intervals over seeds of the accuracy of Gram minus general and of orthogonal minus general lie above "
        "−1 percentage point, and neither interval of the differences in mean cosine at the last layer lies wholly "
        "above 0"
    )
    against_if: ClassVar[str] = "an interval of the differences in accuracy lies wholly below −1 percentage point"
    studies: ClassVar[tuple[str, ...]] = ("bases",)

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Accuracy, mean cosine by layer and the shape of H of every run."""
        return {
            variant: {
                str(seed): {
                    "finished": run.made.get("state") == "finished",
                    "accuracy": run.accuracy,
                    "cosine": run.layers("mean_cosine"),
                    "shapes": _looked(run),
                }
                for seed, run in runs.items()
            }
            for variant, runs in bench.study("bases").items()
        }

    def judge(self, measured: Measured) -> Judgement:
        """Two differences in accuracy, two in similarity."""
        points = {variant: _by_seed(measured[variant], _points) for variant in measured}
        cosine = {variant: _by_seed(_finished(measured, variant), _last_cosine) for variant in measured}
        found = [
            *_differences("accuracy in points", points, "general", SYMMETRIC, partial(above, threshold=MARGIN)),
            *_differences("mean cosine at the last layer", cosine, "general", SYMMETRIC, not_above),
            *_differences("accuracy in points", points, "plain", BASES),
            *_differences("mean cosine at the last layer", cosine, "plain", BASES),
            *_shapes(measured),
        ]
        said = (f"{basis} {fmean(points[basis].values()):.1f} %{_alike(cosine[basis])}" for basis in BASES)
        return judged(found, f"Accuracy, and mean cosine at the last layer: {', '.join(said)}.")

    def figure(self, measured: Measured) -> Figure:
        """Accuracy, mean cosine by layer, and what eigenvalues do not bound."""
        accuracies = [over_seeds(list(_by_seed(measured[variant], _points).values())) for variant in measured]
        series = {
            "mean cosine": [_by_layer(measured, variant, _cosines, 0) for variant in measured],
            "symmetric part": [_by_layer(measured, basis, _symmetric_parts, 1) for basis in BASES],
        }
        title, up = "what eigenvalues in [−1, 0] do not bound", "largest eigenvalue of (H + Hᵀ)/2"
        panels = (
            Panel("accuracy", "basis", "accuracy in %", [with_intervals("all", list(measured), accuracies, "points")]),
            Panel("similarity after training", "layer", "mean cosine", _drawn(series["mean cosine"])),
            Panel(title, "layer", up, _drawn(series["symmetric part"]), reference=0.0),
        )
        return Figure(
            "Sharpening with three bases, mean and 95 % interval over seeds.", [one for one in panels if one.series]
        )


def _looked(run: Trained) -> list[Any]:
    if not run.looked and run.made.get("state") == "finished":
        raise expected(f"what H of {run.variant} looks like", "nothing", "`look_again` at the study")
    return list(run.looked.get("layers", []))


def not_above(interval: Interval) -> Outcome:
    """Confirmed unless the whole interval lies above 0.

    >>> not_above(Interval(0.1, -0.1, 0.3, 3)), not_above(Interval(0.2, 0.1, 0.3, 3))
    ('for', 'undecided')
    """
    return "undecided" if interval.low > 0 else "for"


def _points(run: Measured) -> float:
    return 100 * float(run["accuracy"])


def _last_cosine(run: Measured) -> float:
    return float(run["cosine"][-1])


def _by_seed(runs: Measured, number: Callable[[Measured], float]) -> dict[int, float]:
    return {int(seed): number(run) for seed, run in runs.items()}


def _finished(measured: Measured, variant: str) -> dict[str, Measured]:
    """Runs that came to their end: of the others only the accuracy means something."""
    return {seed: run for seed, run in measured[variant].items() if run["finished"]}


def _differences(
    what: str,
    numbers: Mapping[str, Mapping[int, float]],
    other: str,
    bases: Sequence[str],
    rule: Callable[[Interval], Outcome] | None = None,
) -> list[Finding]:
    return [
        Finding(f"{what}, {basis} minus {other}", gap, None if rule is None else rule(gap))
        for basis in bases
        if numbers[basis].keys() & numbers[other].keys()
        for gap in [paired(numbers[basis], numbers[other])]
    ]


def _alike(cosine: Mapping[int, float]) -> str:
    return f" and {Precision(2)(fmean(cosine.values()))}" if cosine else ""


def _shapes(measured: Measured) -> list[Finding]:
    """What is known of H after training, for the bases of which a run came to its end."""
    return [
        Finding(f"{words}, {basis}", over_seeds([max(_shape(layer, shape) for layer in run["shapes"]) for run in runs]))
        for basis in BASES
        if (runs := _finished(measured, basis).values())
        for shape, words in SHAPES.items()
        if (basis, shape) != ("gram", "condition")  # its value weights are no eigenvectors
    ]


def _shape(layer: Measured, shape: str) -> float:
    if shape == "outside":
        return max(0.0, float(layer["highest"]), -1 - float(layer["lowest"]))
    return float(layer[shape])


def _cosines(run: Measured) -> list[float]:
    return list(run["cosine"])


def _symmetric_parts(run: Measured) -> list[float]:
    return [_shape(layer, "symmetric") for layer in run["shapes"]]


def _by_layer(measured: Measured, variant: str, numbers: Callable[[Measured], list[float]], first: int) -> Series:
    runs = [numbers(run) for run in _finished(measured, variant).values()]
    intervals = [over_seeds(list(values)) for values in zip(*runs, strict=True)]
    return with_intervals(variant, list(range(first, first + len(intervals))), intervals)


def _drawn(series: Sequence[Series]) -> list[Series]:
    return [one for one in series if one.y]
