"""P1's parametrisation does what it is named for: sharpened models have less similar tokens, smoothed ones more."""

from __future__ import annotations

from typing import Any, ClassVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import P1, Claim, Measured, claim
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.evidence.finding import Finding, Judgement, above, below, judged
from unsmooth.evidence.interval import Interval, over_seeds, paired

MOMENTS = {"before training": 0, "after training": -1}


@claim
class SteeringShows(Claim):
    """At the last layer, paired by seed, before and after training."""

    id: ClassVar[str] = "steering-shows"
    number: ClassVar[int] = 6
    source: ClassVar[str] = f"{P1}, the parametrisation of H and its models"
    statement: ClassVar[str] = (
        "Keeping the eigenvalues of H in [−1, 0] makes tokens less alike than in the plain model, and keeping them in "
        "[0, 1] makes them more alike, at initialisation and after training."
    )
    confirmed_if: ClassVar[str] = (
        "the 95 % intervals over seeds of the paired differences in mean cosine at the last layer, sharpen minus plain "
        "and smooth minus plain, lie below and above 0, before and after training: all four"
    )
    refuted_if: ClassVar[str] = "one of the four intervals lies wholly on the other side of 0"
    studies: ClassVar[tuple[str, ...]] = ("steering",)

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Mean cosine per layer of every run, before and after."""
        return {
            variant: {
                str(seed): {moment: run.layers("mean_cosine", place) for moment, place in MOMENTS.items()}
                for seed, run in runs.items()
            }
            for variant, runs in bench.study("steering").items()
        }

    def judge(self, measured: Measured) -> Judgement:
        """Four paired differences."""
        found = [
            Finding(f"mean cosine at the last layer {moment}, {variant} minus plain", gap, side(gap))
            for moment in reversed(MOMENTS)
            for variant, side in (("sharpen", below), ("smooth", above))
            for gap in [paired(_last(measured, variant, moment), _last(measured, "plain", moment))]
        ]
        after = {variant: over_seeds(list(_last(measured, variant, "after training").values())) for variant in measured}
        words = ", ".join(f"{variant} {value.value:.2f}" for variant, value in after.items())
        return judged(found, f"Mean cosine at the last layer after training: {words}.")

    def figure(self, measured: Measured) -> Figure:
        """Mean cosine by layer."""
        panels = [
            Panel(
                title=moment,
                x="layer",
                y="mean cosine",
                series=[_series(measured, variant, moment) for variant in measured],
            )
            for moment in MOMENTS
        ]
        return Figure("Mean cosine of the tokens by layer, mean and 95 % interval over seeds.", panels)


def _last(measured: Measured, variant: str, moment: str) -> dict[int, float]:
    return {int(seed): moments[moment][-1] for seed, moments in measured[variant].items()}


def _series(measured: Measured, variant: str, moment: str) -> Series:
    by_layer = zip(*(moments[moment] for moments in measured[variant].values()), strict=True)
    intervals: list[Interval] = [over_seeds(list(values)) for values in by_layer]
    return Series(
        name=variant,
        x=list(range(len(intervals))),
        y=[one.value for one in intervals],
        low=[one.low for one in intervals],
        high=[one.high for one in intervals],
    )
