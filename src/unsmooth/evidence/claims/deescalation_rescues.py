"""P2's remedy: with the mean over tokens taken out of attention's output, deep post-norm models train better."""

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
    unsettled,
)
from unsmooth.evidence.claim import Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Wording
from unsmooth.evidence.interval import over_seeds, paired
from unsmooth.evidence.registered import AlsoStudied
from unsmooth.evidence.studies.depth import KINDS

_, *DEEP = DEPTHS
AFTER = "after training"


@claim
class DeescalationRescues(AlsoStudied):
    """Beside pre-norm and other remedies, each at the best of three learning rates."""

    id: ClassVar[str] = "deescalation-rescues"
    number: ClassVar[int] = 25
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "Preliminary experimental results confirm the effectiveness of the proposed strategy in small-scale "
        "post-norm Transformer models."
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P2", "v2", "abstract")
    reading: ClassVar[str] = (
        "Taking the mean over tokens out of attention's output makes deep post-norm vision Transformers more accurate, "
        "by more than two points at 24 blocks and at 48."
    )
    differs: ClassVar[str] = (
        "Effectiveness is not defined, and the remedy's place in the block, the depths and the accuracies are not "
        "public. We ask for two points; how it compares with other remedies is surgical-rivals."
    )
    would_decide: ClassVar[str] = (
        "The study `depth`: post-norm with and without it at 24 and 48 blocks, float32, rates until the best is inside "
        "its ladder, ten seeds of 2,000 steps."
    )
    for_if: ClassVar[str] = (
        "in the study `depth`, in float32 and with every best rate inside its ladder (or nothing learned at any), with"
        " Xavier's initialisation, at 24 blocks and at 48: the 95 % interval over seeds of the accuracy with de-"
        "escalation minus without lies above 2 points"
    )
    against_if: ClassVar[str] = "in that study one of the two intervals lies below 2 points"
    studies: ClassVar[tuple[str, ...]] = ("depth_rates", "depth_seeds")

    study: ClassVar[str] = "depth"
    asks: ClassVar[str] = id

    def measure(self, bench: Bench) -> dict[str, Any]:
        """All deep models."""
        return kept_by_depth(bench, lambda variant: variant.rpartition("-")[2] in DEEP)

    def judge_before(self, measured: Measured) -> Judgement:
        """What was run before the rule decides nothing: its gains are told, and why they do not decide."""
        names = depths_of(measured)
        reasons = unsettled(measured, [f"{kind}-{name}" for name in names for kind in ("post", "deescalate")])
        findings = [finding for name in names for finding in _at_depth(measured, name)]
        words = " ".join(ranked(measured, name) for name in names)
        words += f" Not decided by these runs, because {'; '.join(reasons)}. {best_rates(measured)}"
        return Judgement(tuple(findings), words, "undecided")

    def figure_before(self, measured: Measured) -> Figure:
        """Accuracy of all, and mean cosine by layer with and without."""
        panels = []
        for name in depths_of(measured):
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


def depths_of(measured: Measured) -> list[str]:
    """Depths at which all that is compared was trained."""
    return [name for name in DEEP if has(measured, f"post-{name}", f"pre-{name}", f"deescalate-{name}")]


def _at_depth(measured: Measured, name: str) -> list[Finding]:
    plain, remedied = f"post-{name}", f"deescalate-{name}"
    deep = f"{depth(measured, plain)} blocks"
    gain = paired(accuracies(measured, remedied), accuracies(measured, plain))
    cosines = {
        moment: paired(last_cosines(measured, remedied, moment), last_cosines(measured, plain, moment))
        for moment in MOMENTS
    }
    what = f"mean cosine at the last layer, with de-escalation minus without, {deep}"
    return [
        Finding(f"accuracy, with de-escalation minus without, {deep}", gain),
        *(Finding(f"{what}, {moment}", gap) for moment, gap in reversed(cosines.items())),
    ]


def _by_accuracy(measured: Measured, name: str) -> list[str]:
    """Kinds that were run at a depth, the best first."""
    there = [kind for kind in KINDS if has(measured, f"{kind}-{name}")]
    return sorted(there, key=lambda kind: -mean_accuracy(measured, f"{kind}-{name}"))


def ranked(measured: Measured, name: str) -> str:
    """Accuracies at a depth in words, the best first."""
    told = ", ".join(f"{kind} {mean_accuracy(measured, f'{kind}-{name}'):.3f}" for kind in _by_accuracy(measured, name))
    return f"Accuracy with {depth(measured, f'post-{name}')} blocks: {told}."
