"""P2's starting point: the original design, with its norms behind the additions, does not train when it is deep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.by_depth import (
    DEPTHS,
    MOMENTS,
    accuracies,
    best_rates,
    by_layer,
    depth,
    has,
    kept_by_depth,
    last_cosines,
    mean_accuracy,
    unsettled,
)
from unsmooth.evidence.claim import Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Wording
from unsmooth.evidence.interval import over_seeds, paired
from unsmooth.evidence.registered import AlsoStudied


@claim
class PostNormFailsDeep(AlsoStudied):
    """With a class token and Xavier's initialisation, each model at the best of three learning rates."""

    id: ClassVar[str] = "post-norm-fails-deep"
    number: ClassVar[int] = 21
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "extending the original Transformer design to models of greater depth has proven exceedingly challenging, "
        "if not impossible"
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P2", "v2", "abstract")
    reading: ClassVar[str] = (
        "Post-norm vision Transformers of 48 blocks with Xavier's initialisation learn nothing from pixels that a "
        "linear model would not, at any learning rate, where pre-norm ones of the same depth do."
    )
    differs: ClassVar[str] = (
        "The sentence speaks of the original design and of greater depth; how deep, and on what, is not public. "
        "Initialisation is part of it: with a standard deviation of 0.02 post-norm models of that depth train in pilot "
        "runs, so Xavier's decides and the other is reported."
    )
    would_decide: ClassVar[str] = (
        "The study `depth`: post-norm and pre-norm at 48 blocks, float32, rates until the best is inside its ladder, "
        "ten seeds of 2,000 steps beside a linear probe on the same pixels."
    )
    for_if: ClassVar[str] = (
        "in the study `depth`, in float32 and with every best rate inside its ladder (or nothing learned at any), at "
        "48 blocks with Xavier's initialisation: the 95 % interval over seeds of the accuracy of post-norm minus that "
        "of a linear probe on the same pixels lies below 1 point, and that of pre-norm minus the probe's above 1 point"
    )
    against_if: ClassVar[str] = (
        "in that study the interval of post-norm minus the probe lies above 1 point, or that of pre-norm minus the "
        "probe below it"
    )
    studies: ClassVar[tuple[str, ...]] = ("depth_rates", "depth_seeds")

    study: ClassVar[str] = "depth"
    asks: ClassVar[str] = id

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Post-norm and pre-norm models alone."""
        return kept_by_depth(bench, lambda variant: variant.startswith(("post-", "pre-")))

    def judge_before(self, measured: Measured) -> Judgement:
        """What was run before the rule decides nothing: its gaps are told, and why they do not decide."""
        names = _depths(measured)
        reasons = unsettled(measured, [f"{kind}-{name}" for name in names for kind in ("post", "pre")])
        findings = [*_gaps(measured), *_likenesses(measured), *_at_one_rate(measured)]
        return Judgement(tuple(findings), _words(measured, reasons), "undecided")

    def figure_before(self, measured: Measured) -> Figure:
        """Accuracy by depth, and mean cosine by layer before and after."""
        names = _depths(measured)
        lines = [
            with_intervals(
                f"{kind}-norm",
                [depth(measured, f"{kind}-{name}") for name in names],
                [over_seeds(list(accuracies(measured, f"{kind}-{name}").values())) for name in names],
            )
            for kind in ("post", "pre")
        ]
        panels = [
            Panel("each at its best rate", "blocks", "accuracy", lines, reference=measured["chance"]),
            Panel("every rate, one seed", "learning rate", "accuracy", _probes(measured), log_x=True),
            *(
                Panel(
                    title=moment,
                    x="layer",
                    y="mean cosine",
                    series=[by_layer(measured, f"{kind}-{name}", moment) for kind in ("post", "pre") for name in names],
                )
                for moment in MOMENTS
            ),
        ]
        return Figure(
            "Accuracy of post-norm and pre-norm models by depth (the thin line is guessing), and mean cosine of their "
            "tokens by layer; mean and 95 % interval over seeds.",
            panels,
        )


def _depths(measured: Measured) -> list[str]:
    return [name for name in DEPTHS if has(measured, f"post-{name}", f"pre-{name}")]


def _deep(measured: Measured, name: str) -> str:
    return f"{depth(measured, f'post-{name}')} blocks"


def _gaps(measured: Measured) -> Iterator[Finding]:
    """The deepest first."""
    for name in reversed(_depths(measured)):
        gap = paired(accuracies(measured, f"post-{name}"), accuracies(measured, f"pre-{name}"))
        yield Finding(f"accuracy, post-norm minus pre-norm, {_deep(measured, name)}", gap)


def _likenesses(measured: Measured) -> Iterator[Finding]:
    for name in _depths(measured):
        for moment in MOMENTS:
            cosine = over_seeds(list(last_cosines(measured, f"post-{name}", moment).values()))
            yield Finding(f"mean cosine at the last layer {moment}, post-norm, {_deep(measured, name)}", cosine)


def _at_one_rate(measured: Measured) -> list[Finding]:
    """What a comparison at the highest rate would have said, of the one seed that the rates were chosen with."""
    rate = max(next(iter(measured["probes"].values())), key=float)
    return [
        Finding(
            f"accuracy, post-norm minus pre-norm, {_deep(measured, name)}, both at rate {rate}, one seed",
            over_seeds([measured["probes"][f"post-{name}"][rate] - measured["probes"][f"pre-{name}"][rate]]),
        )
        for name in _depths(measured)
    ]


def _probes(measured: Measured) -> list[Series]:
    return [Series(name, list(map(float, rates)), list(rates.values())) for name, rates in measured["probes"].items()]


def _words(measured: Measured, reasons: Sequence[str]) -> str:
    means = "; ".join(
        f"{_deep(measured, name)}: post-norm {mean_accuracy(measured, f'post-{name}'):.3f}, "
        f"pre-norm {mean_accuracy(measured, f'pre-{name}'):.3f}"
        for name in _depths(measured)
    )
    return (
        f"Accuracy with {means}. That is a gap which grows with depth, and no failure: nothing was trained beside a "
        f"linear probe. Not decided by these runs, because {'; '.join(reasons)}. {best_rates(measured)}"
    )
