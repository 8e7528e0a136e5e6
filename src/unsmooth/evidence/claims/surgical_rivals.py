"""P2 sets surgical removal of similarity against diminishing self-attention: does it do as well?"""

from __future__ import annotations

from typing import ClassVar

from unsmooth.evidence.by_depth import accuracies, best_rates, depth, has
from unsmooth.evidence.claim import CLAIMS, Measured, Section, Source, claim
from unsmooth.evidence.claims.deescalation_rescues import depths_of, ranked
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Finding, Judgement, Wording
from unsmooth.evidence.interval import paired
from unsmooth.evidence.registered import AlsoStudied

RIVALS = ("pre", "deepnorm", "residual_scaling", "b2t", "rezero")
DEPTH = "24"


@claim
class SurgicalRivals(AlsoStudied):
    """De-escalated post-norm models beside pre-norm and four remedies that scale or bypass branches."""

    id: ClassVar[str] = "surgical-rivals"
    number: ClassVar[int] = 26
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "Surgically removing similarity brings deep post-norm models close to those that diminish self-attention, such "
        "as pre-norm ones."
    )
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source(
        "P2", "v2", "public summaries, which say that it can approach pre-norm performance"
    )
    reading: ClassVar[str] = (
        "At 24 blocks a post-norm vision Transformer with de-escalation loses at most two points of accuracy to "
        "pre-norm, DeepNorm, branches scaled by 1/√L, B2T and ReZero, each at its best rate."
    )
    differs: ClassVar[str] = (
        "The abstract sets the two strategies against each other and does not say which does better. One place in the "
        "block and τ = 1."
    )
    would_decide: ClassVar[str] = (
        "The registered study `surgical`: de-escalation, in four places and by four shares, beside five rivals at 24 "
        "blocks, five seeds of 1,000 steps: minutes of a GPU."
    )
    for_if: ClassVar[str] = (
        "in the study `surgical`, in float32 and with every best rate inside its ladder (or nothing learned at any): "
        "the 95 % intervals over seeds of its accuracy minus that of each rival lie above -2 points"
    )
    against_if: ClassVar[str] = "in that study one of these intervals lies below -2 points"
    studies: ClassVar[tuple[str, ...]] = ("depth_rates", "depth_seeds")
    measured_by: ClassVar[str] = "deescalation-rescues"
    study: ClassVar[str] = "surgical"
    asks: ClassVar[str] = id

    def judge_before(self, measured: Measured) -> Judgement:
        """A difference to each rival, which what was run before the rule does not decide."""
        own = f"deescalate-{DEPTH}"
        if DEPTH not in depths_of(measured):
            return Judgement((), f"No model with de-escalation called {own} is there.", "undecided")
        findings = []
        for kind in RIVALS:
            if has(measured, f"{kind}-{DEPTH}"):
                gap = paired(accuracies(measured, own), accuracies(measured, f"{kind}-{DEPTH}"))
                what = f"accuracy, de-escalation minus {kind}, {depth(measured, own)} blocks"
                findings.append(Finding(what, gap))
        findings.sort(key=lambda one: one.interval.value)
        words = f"{ranked(measured, DEPTH)} Run before the rule was written, which these runs do not decide."
        return Judgement(tuple(findings), f"{words} {best_rates(measured)}", "undecided")

    def figure_before(self, measured: Measured) -> Figure:
        """As of the claim that it is measured by."""
        return CLAIMS[self.measured_by].figure(measured)
