"""P2 sets surgical removal of similarity against diminishing self-attention: does it do as well?"""

from __future__ import annotations

from typing import ClassVar

from unsmooth.evidence.by_depth import accuracies, best_rates, depth, has, unsettled
from unsmooth.evidence.claim import CLAIMS, Claim, Measured, Section, Source, claim
from unsmooth.evidence.claims.deescalation_rescues import depths_of, ranked
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Finding, Judgement, Wording, above, together
from unsmooth.evidence.interval import paired

RIVALS = ("pre", "deepnorm", "residual_scaling", "b2t", "rezero")
DEPTH = "24"
AS_GOOD = -0.02


@claim
class SurgicalRivals(Claim):
    """De-escalated post-norm models beside pre-norm and four remedies that scale or bypass branches."""

    id: ClassVar[str] = "surgical-rivals"
    number: ClassVar[int] = 23
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
        "De-escalation at 24 blocks at rates of 3e-5 and 1e-5 beside those that were run, in float32, three seeds of "
        "975 steps: ten minutes of a GPU. The study `surgical` has τ and four places besides."
    )
    for_if: ClassVar[str] = (
        "at 24 blocks, or in the study `surgical` once it is there, in float32 and with the best rate of de-escalation "
        "inside its grid: the 95 % intervals over seeds of its accuracy minus that of each rival lie above -2 points"
    )
    against_if: ClassVar[str] = "under the same conditions one of these intervals lies below -2 points"
    studies: ClassVar[tuple[str, ...]] = ("depth_rates", "depth_seeds")
    measured_by: ClassVar[str] = "deescalation-rescues"

    def judge(self, measured: Measured) -> Judgement:
        """A difference to each rival; undecided while de-escalation's own rate or precision are in question."""
        own = f"deescalate-{DEPTH}"
        if DEPTH not in depths_of(measured):
            return Judgement((), f"No model with de-escalation called {own} is there.", "undecided")
        findings = []
        for kind in RIVALS:
            if has(measured, f"{kind}-{DEPTH}"):
                gap = paired(accuracies(measured, own), accuracies(measured, f"{kind}-{DEPTH}"))
                what = f"accuracy, de-escalation minus {kind}, {depth(measured, own)} blocks"
                findings.append(Finding(what, gap, above(gap, AS_GOOD)))
        said = together(one.outcome for one in findings if one.outcome is not None)
        # A rival at an end of its grid can only be better than it is here, which does not help de-escalation.
        reasons = unsettled(measured, [own])
        words = ranked(measured, DEPTH)
        if reasons:
            words += f" Not decided by these runs, because {'; '.join(reasons)}."
        findings.sort(key=lambda one: one.interval.value)
        return Judgement(tuple(findings), f"{words} {best_rates(measured)}", "undecided" if reasons else said)

    def figure(self, measured: Measured) -> Figure:
        """As of the claim that it is measured by."""
        return CLAIMS[self.measured_by].figure(measured)
