"""P2's remedy: with the mean over tokens taken out of attention's output, deep post-norm models train."""

from __future__ import annotations

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
    over_half_way,
)
from unsmooth.evidence.claim import P2, Claim, Measured, claim
from unsmooth.evidence.figure import Figure, Panel, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, above, below, judged
from unsmooth.evidence.interval import over_seeds, paired
from unsmooth.evidence.studies.depth import KINDS

_, *DEEP = DEPTHS
WORTH = 0.02
AFTER = "after training"


@claim
class DeescalationRescues(Claim):
    """Beside pre-norm and other remedies, each at the best of three learning rates."""

    id: ClassVar[str] = "deescalation-rescues"
    number: ClassVar[int] = 14
    source: ClassVar[str] = f"{P2}, de-escalation Y = (I - τΠ)X with τ = 1; its place in the block is not public"
    statement: ClassVar[str] = (
        "Taking the mean over tokens out of attention's output makes deep post-norm models train, and keeps their "
        "tokens less alike; how it compares with pre-norm and other remedies is reported."
    )
    confirmed_if: ClassVar[str] = (
        "with 24 blocks and with 40, each model at its own best rate, 95 % intervals over seeds: accuracy with "
        "de-escalation minus without lies above 2 points; accuracy with it, less the middle between guessing and "
        "pre-norm's of the same seed, lies above 0; and mean cosine at the last layer after training, with minus "
        "without, lies below 0"
    )
    refuted_if: ClassVar[str] = (
        "with 24 blocks or with 40 one of these lies wholly on the other side: the gain below 2 points, the accuracy "
        "below the middle, or the cosine above"
    )
    studies: ClassVar[tuple[str, ...]] = ("depth_rates", "depth_seeds")

    def measure(self, bench: Bench) -> dict[str, Any]:
        """All deep models."""
        return kept_by_depth(bench, lambda variant: variant.rpartition("-")[2] in DEEP)

    def judge(self, measured: Measured) -> Judgement:
        """Three findings at each depth that was run; the rivals are only reported."""
        names = _depths(measured)
        spoken = [finding for name in names for finding in _at_depth(measured, name)]
        rivals = [finding for name in names for finding in _beside_rivals(measured, name)]
        words = " ".join(_ranked(measured, name) for name in names)
        return judged([*spoken, *rivals], f"{words} {best_rates(measured)}")

    def figure(self, measured: Measured) -> Figure:
        """Accuracy of all, and mean cosine by layer with and without."""
        panels = []
        for name in _depths(measured):
            deep = f"{depth(measured, f'post-{name}')} blocks"
            order = _by_accuracy(measured, name)
            intervals = [over_seeds(list(accuracies(measured, f"{kind}-{name}").values())) for kind in order]
            points = with_intervals("accuracy", order, intervals, "points")
            lines = [by_layer(measured, f"{kind}-{name}", AFTER) for kind in order]
            panels += [
                Panel(deep, "", "accuracy", [points], reference=measured["chance"]),
                Panel(f"{deep}, {AFTER}", "layer", "mean cosine", lines),
            ]
        return Figure(
            "Accuracy of deep models, each at its best rate (the thin line is guessing), and mean cosine of their "
            "tokens by layer; mean and 95 % interval over seeds.",
            panels,
        )


def _depths(measured: Measured) -> list[str]:
    return [name for name in DEEP if has(measured, f"post-{name}", f"pre-{name}", f"deescalate-{name}")]


def _at_depth(measured: Measured, name: str) -> list[Finding]:
    plain, pre, remedied = f"post-{name}", f"pre-{name}", f"deescalate-{name}"
    deep = f"{depth(measured, plain)} blocks"
    gain = paired(accuracies(measured, remedied), accuracies(measured, plain))
    half = over_half_way(measured, remedied, pre)
    cosines = {
        moment: paired(last_cosines(measured, remedied, moment), last_cosines(measured, plain, moment))
        for moment in MOMENTS
    }
    what = f"mean cosine at the last layer, with de-escalation minus without, {deep}"
    return [
        Finding(f"accuracy, with de-escalation minus without, {deep}", gain, above(gain, WORTH)),
        Finding(f"accuracy with de-escalation over half-way from guessing to pre-norm's, {deep}", half, above(half)),
        *(
            Finding(f"{what}, {moment}", gap, below(gap) if moment == AFTER else None)
            for moment, gap in reversed(cosines.items())
        ),
    ]


def _beside_rivals(measured: Measured, name: str) -> list[Finding]:
    own = accuracies(measured, f"deescalate-{name}")
    return [
        Finding(
            f"accuracy, de-escalation minus {kind}, {depth(measured, f'{kind}-{name}')} blocks",
            paired(own, accuracies(measured, f"{kind}-{name}")),
        )
        for kind in KINDS
        if kind not in ("post", "deescalate") and has(measured, f"{kind}-{name}")
    ]


def _by_accuracy(measured: Measured, name: str) -> list[str]:
    """Kinds that were run at a depth, the best first."""
    there = [kind for kind in KINDS if has(measured, f"{kind}-{name}")]
    return sorted(there, key=lambda kind: -mean_accuracy(measured, f"{kind}-{name}"))


def _ranked(measured: Measured, name: str) -> str:
    told = ", ".join(f"{kind} {mean_accuracy(measured, f'{kind}-{name}'):.3f}" for kind in _by_accuracy(measured, name))
    return f"Accuracy with {depth(measured, f'post-{name}')} blocks: {told}."
