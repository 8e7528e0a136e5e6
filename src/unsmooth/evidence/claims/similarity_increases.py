"""The first half of what P1 finds in trained models: there are some in which tokens become more alike."""

from __future__ import annotations

from typing import ClassVar

from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.claims.similarity_not_inevitable import DEFINITIONS, curves, ends, judge_cases
from unsmooth.evidence.figure import Figure, Panel
from unsmooth.evidence.finding import Judgement, Wording


@claim
class SimilarityIncreases(Claim):
    """From the models of similarity-not-inevitable, by the same measure, in the other direction."""

    id: ClassVar[str] = "similarity-increases"
    number: ClassVar[int] = 6
    section: ClassVar[Section] = "trained models"
    quote: ClassVar[str] = "We find that there are cases where feature similarity increases"
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v3", "abstract")
    reading: ClassVar[str] = (
        "There are models that others trained in which the mean cosine of the tokens is higher after the last layer "
        "than before the first."
    )
    differs: ClassVar[str] = (
        "The paper's measure and its models were not at hand. One model is enough; two are asked for."
    )
    stated_scale: ClassVar[bool] = True
    would_decide: ClassVar[str] = "Two models of different lineages on 16 sequences each: a minute of a CPU."
    for_if: ClassVar[str] = (
        "in at least 2 models that others trained, not from one another, the interval over sequences of the mean "
        "cosine at the end minus at the beginning lies above 0, at 95 % for all lineages together, with and without "
        "massive tokens"
    )
    against_if: ClassVar[str] = "never: one model is enough for the sentence, so no number of others is against it"
    measured_by: ClassVar[str] = "similarity-not-inevitable"

    def judge(self, measured: Measured) -> Judgement:
        """Count lineages."""
        return judge_cases(measured, "more alike")

    def figure(self, measured: Measured) -> Figure:
        """Curves, and the way from first to last."""
        panels = [
            Panel("by depth", "share of depth", DEFINITIONS[0].replace("_", " "), curves(measured["models"])),
            Panel("end minus beginning", "model", "change of mean cosine", [ends(measured["models"])], reference=0),
        ]
        return Figure("Mean cosine of the tokens from the first layer (0) to the last (1) of each model.", panels)
