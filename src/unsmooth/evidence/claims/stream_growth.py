"""What diminishes attention in pre-norm models diminishes the MLP as much: the stream grows."""

from __future__ import annotations

from typing import ClassVar

from unsmooth.evidence.claim import CLAIMS, Claim, Measured, Section, Source, claim
from unsmooth.evidence.claims.pre_norm_diminishes import blocks, learned, ratios
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Finding, Judgement, Wording, judged, within
from unsmooth.evidence.interval import over_seeds

ALIKE = (0.8, 1.25)


@claim
class StreamGrowth(Claim):
    """Attention's ratio of last to first quarter over the MLP's, of the trained pre-norm models."""

    id: ClassVar[str] = "stream-growth"
    number: ClassVar[int] = 28
    section: ClassVar[Section] = "our own"
    quote: ClassVar[str] = "What diminishes self-attention in pre-norm models diminishes every branch alike."
    wording: ClassVar[Wording] = "ours"
    source: ClassVar[Source] = Source("P2", "", "bears on pre-norm's diminishing of self-attention")
    reading: ClassVar[str] = (
        "In trained pre-norm models the share that the MLP adds to the stream falls with depth by as much as that of "
        "attention, within a quarter."
    )
    would_decide: ClassVar[str] = "Ten seeds of the pre-norm model with 40 blocks: six minutes of a GPU."
    for_if: ClassVar[str] = (
        "at every depth the 95 % interval over seeds of attention's ratio of last to first quarter over the MLP's "
        f"lies within [{ALIKE[0]:g}, {ALIKE[1]:g}]"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly outside"
    studies: ClassVar[tuple[str, ...]] = ("depth_rates", "depth_seeds")
    measured_by: ClassVar[str] = "pre-norm-diminishes"

    def judge(self, measured: Measured) -> Judgement:
        """An interval per depth."""
        found = []
        for runs in reversed(list(learned(measured)[0].values())):
            if pre := runs.get("pre"):
                over = over_seeds([ratio / pre[str(seed)]["mlp_ratio"] for seed, ratio in ratios(pre).items()])
                what = (
                    f"fall of attention's share over that of the MLP's, pre-norm after training, {blocks(runs)} blocks"
                )
                found.append(Finding(what, over, within(over, *ALIKE)))
        if not found:
            return Judgement((), "No pre-norm model that learned something is there.", "undecided")
        return judged(found, "Attention and MLP lose their share of the growing stream together.")

    def figure(self, measured: Measured) -> Figure:
        """As of the claim that it is measured by."""
        return CLAIMS[self.measured_by].figure(measured)
