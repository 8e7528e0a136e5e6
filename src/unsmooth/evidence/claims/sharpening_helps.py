"""P1's first version: keeping tokens apart makes for better models, also with few or corrupted data."""

from __future__ import annotations

from typing import Any, ClassVar

from unsmooth.evidence.accuracy import GRAM_ALONE, compare, draw_benefit, judge_benefit
from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import P1, Claim, Measured, claim
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Judgement


@claim
class SharpeningHelps(Claim):
    """Accuracy of sharpened models against plain ones, paired by seed, in four settings.

    The intervals of the four settings are not widened for there being four: a single setting cannot confirm, only veto,
    and narrow intervals veto the sooner.
    """

    id: ClassVar[str] = "sharpening-helps"
    number: ClassVar[int] = 7
    source: ClassVar[str] = (
        f"{P1}, abstract of the first version (there against another remedy, here against the plain model); later "
        "versions do not claim it"
    )
    statement: ClassVar[str] = (
        "Keeping the eigenvalues of H in [−1, 0] improves the accuracy of an image classifier, with all training data, "
        "with fewer, and on corrupted images."
    )
    confirmed_if: ClassVar[str] = (
        "the 95 % interval over seeds of the accuracy of sharpen minus plain, averaged over four settings (all "
        "training images, 25 % of them, 10 %, and corrupted test images with all training images), lies above 0, and "
        "in none of the four the interval lies wholly below 0"
    )
    refuted_if: ClassVar[str] = "the interval of the average over the four settings lies wholly below 0"
    studies: ClassVar[tuple[str, ...]] = ("steering", "less_data")
    beyond: ClassVar[str] = GRAM_ALONE

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Accuracies of the plain and the sharpened models."""
        return compare(bench, "sharpen")

    def judge(self, measured: Measured) -> Judgement:
        """By the average, with a veto of each setting."""
        return judge_benefit(measured, "sharpen")

    def figure(self, measured: Measured) -> Figure:
        """Differences, and accuracy over severity."""
        return draw_benefit(measured, "sharpen")
