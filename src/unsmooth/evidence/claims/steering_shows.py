"""P1's parametrisation does what it is named for: sharpened models have less similar tokens, smoothed ones more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from unsmooth.evidence.bench import Bench, NotFinishedError
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Outcome, Wording, above, below, judged
from unsmooth.evidence.interval import Interval, over_seeds, paired

MOMENTS = {"before training": 0, "after training": -1}
FINER = "finer patches, one seed"


@claim
class SteeringShows(Claim):
    """At the last layer, paired by seed, before and after training."""

    id: ClassVar[str] = "steering-shows"
    number: ClassVar[int] = 15
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "Our analysis reveals a simple way to parameterize the weights of the Transformer update equations to "
        "influence smoothing behavior."
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v3", "abstract")
    reading: ClassVar[str] = (
        "Keeping the eigenvalues of H in [−1, 0] makes tokens less alike than in the plain model, and keeping them "
        "in [0, 1] makes them more alike, at initialisation and after training."
    )
    differs: ClassVar[str] = (
        "The paper's form is VΛV⁻¹ with clipped Λ; these models have a symmetric H from a Gram matrix with one "
        "scale for all eigenvalues. ViT-Ti, patches of four pixels, 100 of 300 epochs, one data set."
    )
    would_decide: ClassVar[str] = (
        "The lever study: general and Schur forms with eigenvalues capped one by one, sharpen and smooth, three seeds."
    )
    for_if: ClassVar[str] = (
        "the 95 % intervals over seeds of the paired differences in mean cosine at the last layer, sharpen minus plain "
        "and smooth minus plain, lie below and above 0, before and after training: all four"
    )
    against_if: ClassVar[str] = "one of the four intervals lies wholly on the other side of 0"
    studies: ClassVar[tuple[str, ...]] = ("steering", "finer_patches")

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Mean cosine per layer of every run, before and after: of each study, variant and seed."""
        measured = {"steering": _similarity(bench, "steering")}
        # Nothing is judged by it: where there was no time to train it, the outcome does not wait.
        with suppress(NotFinishedError):
            measured["finer_patches"] = _similarity(bench, "finer_patches")
        return measured

    def judge(self, measured: Measured) -> Judgement:
        """Four paired differences of `steering`; those of the other study, which has one seed, are told beside them."""
        by_study = {study: _gaps(found) for study, found in measured.items()}
        found = [Finding(what, gap, side(gap)) for what, gap, side in by_study["steering"]]
        finer = [Finding(f"{FINER}: {what}", gap) for what, gap, _ in by_study.get("finer_patches", ())]
        after = {
            variant: over_seeds(list(_last(runs, "after training").values()))
            for variant, runs in measured["steering"].items()
        }
        words = ", ".join(f"{variant} {value.value:.2f}" for variant, value in after.items())
        return judged([*found, *finer], f"Mean cosine at the last layer after training: {words}.")

    def figure(self, measured: Measured) -> Figure:
        """Mean cosine by layer."""
        panels = [
            Panel(
                title=moment if study == "steering" else f"{moment}, {FINER}",
                x="layer",
                y="mean cosine",
                series=[_series(variant, runs, moment) for variant, runs in found.items()],
            )
            for study, found in measured.items()
            for moment in MOMENTS
        ]
        return Figure("Mean cosine of the tokens by layer, mean and 95 % interval over seeds.", panels)


def _similarity(bench: Bench, study: str) -> dict[str, Any]:
    return {
        variant: {
            str(seed): {moment: run.layers("mean_cosine", place) for moment, place in MOMENTS.items()}
            for seed, run in runs.items()
        }
        for variant, runs in bench.study(study).items()
    }


def _gaps(found: Measured) -> list[tuple[str, Interval, Callable[[Interval], Outcome]]]:
    return [
        (
            f"mean cosine at the last layer {moment}, {variant} minus plain",
            paired(_last(found[variant], moment), _last(found["plain"], moment)),
            side,
        )
        for moment in reversed(MOMENTS)
        for variant, side in (("sharpen", below), ("smooth", above))
    ]


def _last(runs: Measured, moment: str) -> dict[int, float]:
    return {int(seed): moments[moment][-1] for seed, moments in runs.items()}


def _series(variant: str, runs: Measured, moment: str) -> Series:
    by_layer = list(zip(*(moments[moment] for moments in runs.values()), strict=True))
    return with_intervals(variant, list(range(len(by_layer))), (over_seeds(list(values)) for values in by_layer))
