"""P1's second version: for classifying images it is making tokens alike, not keeping them apart, that can help."""

from __future__ import annotations

from typing import Any, ClassVar

from unsmooth.evidence.accuracy import compare, draw_benefit, judge_benefit
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Judgement, Wording
from unsmooth.evidence.registered import AlsoStudied

MISSING = (
    "No smoothed run here has the paper's form, so nothing is decided: these models have one scale for all "
    "eigenvalues of a symmetric H."
)


@claim
class SmoothingHelps(AlsoStudied):
    """Accuracy of smoothed models against plain ones, paired by seed, in four settings."""

    id: ClassVar[str] = "smoothing-helps"
    number: ClassVar[int] = 18
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "For image classification tasks we show that smoothing, instead of sharpening, can improve generalization."
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v2", "abstract")
    reading: ClassVar[str] = (
        "A smoothed image classifier in the general basis, eigenvalues of H clipped one by one to [0, 1], is more "
        "accurate than the plain one, and than the sharpened one of the same form, each at its own rate."
    )
    differs: ClassVar[str] = '"Can" asks for one setting; this is ours, small images on a small ViT.'
    would_decide: ClassVar[str] = (
        "The study `lever`: plain, and every form of smooth and sharpen, each at its best rate, three seeds of 10,000 "
        "steps."
    )
    for_if: ClassVar[str] = (
        "in the study `lever` the 95 % intervals over seeds of the accuracy of smooth (general form) minus plain, and "
        "minus sharpen in the same form, lie above 0, each at a best rate inside its ladder; not run where no plain "
        "layer's radius reaches 1"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly below 0"
    studies: ClassVar[tuple[str, ...]] = ("steering", "less_data", "finer_patches")

    study: ClassVar[str] = "lever"
    asks: ClassVar[str] = id

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Accuracies of the plain and the smoothed models."""
        return compare(bench, "smooth")

    def judge_before(self, measured: Measured) -> Judgement:
        """What earlier runs say decides nothing."""
        return judge_benefit(measured, "smooth", MISSING)

    def figure_before(self, measured: Measured) -> Figure:
        """Differences, and accuracy over severity."""
        return draw_benefit(measured, "smooth")
