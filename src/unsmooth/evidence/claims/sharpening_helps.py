"""P1's first version: keeping tokens apart makes for better models, also with few or corrupted data."""

from __future__ import annotations

from typing import Any, ClassVar

from unsmooth.evidence.accuracy import compare, draw_benefit, judge_benefit
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Judgement, Wording
from unsmooth.evidence.registered import AlsoStudied

MISSING = (
    "No run here has the paper's form beside another remedy, so nothing is decided: these models have one scale "
    "for all eigenvalues of a symmetric H, which binds where the plain model wants eigenvalues past 1."
)


@claim
class SharpeningHelps(AlsoStudied):
    """Accuracy of sharpened models against plain ones, paired by seed, in four settings."""

    id: ClassVar[str] = "sharpening-helps"
    number: ClassVar[int] = 16
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "Compared to a recent solution for oversmoothing, our approach improves generalization, even when training "
        "with more layers, fewer datapoints, and data that is corrupted."
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v1", "abstract")
    reading: ClassVar[str] = (
        "A sharpened image classifier in the general basis, eigenvalues of H clipped one by one to [−1, 0], is "
        "more accurate than one with AttnScale and than one with FeatScale, each at its own rate."
    )
    differs: ClassVar[str] = (
        "Later versions of the paper do not say it. Which recent solution is meant is known from reviews (Wang et "
        "al. 2022). More layers are a claim of their own, more-layers; fewer and corrupted images are reported."
    )
    would_decide: ClassVar[str] = (
        "The study `lever`: plain, every form of H, AttnScale and FeatScale, each at its best rate, three seeds of "
        "10,000 steps."
    )
    for_if: ClassVar[str] = (
        "in the study `lever` the 95 % intervals over seeds of the accuracy of sharpen (general form) minus that of "
        "AttnScale, and minus that of FeatScale, lie above 0, each at a best rate inside its ladder; not run where no "
        "plain layer's radius reaches 1"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly below 0"
    studies: ClassVar[tuple[str, ...]] = ("steering", "less_data", "finer_patches", "bases")

    study: ClassVar[str] = "lever"
    asks: ClassVar[str] = id

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Accuracies of the plain and the sharpened models."""
        return compare(bench, "sharpen")

    def judge_before(self, measured: Measured) -> Judgement:
        """What earlier runs say decides nothing."""
        return judge_benefit(measured, "sharpen", MISSING)

    def figure_before(self, measured: Measured) -> Figure:
        """Differences, and accuracy over severity."""
        return draw_benefit(measured, "sharpen")
