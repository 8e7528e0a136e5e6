"""Claims that only a registered study can decide: none of the earlier runs bears on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from unsmooth.evidence.claim import Section, Source, claim
from unsmooth.evidence.finding import Finding, Outcome, Wording
from unsmooth.evidence.interval import Interval
from unsmooth.evidence.registered import Results, Studied, at_this_level

# Families whose escalation the registration judges, and gains at which it does.
_JUDGED_GAINS = (0.8, "xavier")
_SIMILARITY = "log_tdiv"


def escalations(results: Results, which: Literal["second_half", "bound"]) -> Iterator[tuple[dict[str, Any], Interval]]:
    """Rows of post-norm networks that are judged, with the interval that decides."""
    for row in results.get("escalation", ()):
        if row["family"] == "post" and row["gain"] in _JUDGED_GAINS:
            yield row, at_this_level(row[which])


def _where(row: dict[str, Any]) -> str:
    return f"width {row['width']}, weights {row['gain']}"


@claim
class MoreLayers(Studied):
    """Twelve, 24 and 48 blocks."""

    id: ClassVar[str] = "more-layers"
    number: ClassVar[int] = 17
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = "our approach improves generalization, even when training with more layers"
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v1", "abstract")
    reading: ClassVar[str] = (
        "An image classifier sharpened in the general form is more accurate than one with AttnScale and than one with "
        "FeatScale at 12, 24 and 48 blocks, each at its own rate."
    )
    differs: ClassVar[str] = "How many layers the paper means is not known. Part of the sentence of sharpening-helps."
    would_decide: ClassVar[str] = (
        "The registered study `layers`: sharpen, AttnScale and FeatScale at 12, 24 and 48 pre-norm blocks, five seeds "
        "of 2,000 steps, ten hours of a CPU core."
    )
    for_if: ClassVar[str] = (
        "in the study `layers` the 95 % interval over seeds of the difference in accuracy to either lies above 0 at "
        "every depth"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly below 0"
    study: ClassVar[str] = "layers"
    asks: ClassVar[str] = id


@claim
class ForcedTextHarm(Studied):
    """Characters, 6 blocks."""

    id: ClassVar[str] = "forced-text-harm"
    number: ClassVar[int] = 19
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "Whereas for text generation tasks Transformers that are forced to either smooth or sharpen have worse "
        "generalization."
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v2", "abstract")
    reading: ClassVar[str] = (
        "A small language model of characters has a higher test loss when it is forced to smooth, and when it is "
        "forced to sharpen, than the plain one, each at its own rate."
    )
    differs: ClassVar[str] = "The paper's text models are not known here; these are of characters, with 6 blocks."
    would_decide: ClassVar[str] = "The registered study `text`: plain, sharpen and smooth, three seeds, on a CPU."
    for_if: ClassVar[str] = (
        "in the study `text` the 95 % intervals over seeds of the test loss of smooth minus plain and of sharpen minus "
        "plain, both in the Schur form, lie above 0"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly below 0"
    study: ClassVar[str] = "text"
    asks: ClassVar[str] = "forced-text-harm"


@claim
class RateInNetworks(Studied):
    """48 blocks, three widths, eight seeds."""

    id: ClassVar[str] = "rate-in-networks"
    number: ClassVar[int] = 22
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = "tokens grow increasingly alike after repeated applications of the SA mechanism"
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P2", "v2", "abstract")
    reading: ClassVar[str] = (
        "In untrained post-norm vision Transformers of 48 blocks log t_div falls block by block, as fast in the second "
        "half as in the first by half at least, with Xavier's weights and with weights of gain 0.8."
    )
    differs: ClassVar[str] = (
        "The sentence is of self-attention; here are whole blocks with norms and MLPs, untrained, on images. Smaller "
        "initial weights are told beside it."
    )
    would_decide: ClassVar[str] = "The registered study `rate`: forward passes alone, a third of an hour of a CPU core."
    for_if: ClassVar[str] = (
        "in the study `rate`, at every width and with both kinds of weights, the 95 % interval over seeds of the "
        "slope of log t_div over the second half of the blocks lies below 0, and the slope is at least half of that "
        "over the first"
    )
    against_if: ClassVar[str] = "in one of these the interval of the slope over all blocks lies at 0 or above"
    study: ClassVar[str] = "rate"
    asks: ClassVar[str] = "geometric escalation in post-norm"

    def findings(self, results: Results) -> Iterator[Finding]:
        """The slope of log t_div over the second half of the blocks."""
        for row, late in escalations(results, "second_half"):
            shape = row["shape"]
            outcome: Outcome = "for" if shape == "geometric" and late.high < 0 else "undecided"
            if shape == "does not escalate" and at_this_level(row["slope"]).low >= 0:
                outcome = "against"
            yield Finding(
                f"slope of log t_div a block, second half of 48 post-norm blocks, {_where(row)}", late, outcome
            )


@claim
class BoundInNetworks(Studied):
    """From the same networks as rate-in-networks."""

    id: ClassVar[str] = "bound-in-networks"
    number: ClassVar[int] = 23
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = (
        "The expected escalation rate has a lower bound that grows with t_sim and depends on the second eigenvalue of "
        "attention."
    )
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source("P2", "v2", "public summaries; the bound itself is derived here")
    reading: ClassVar[str] = (
        "In untrained post-norm vision Transformers attention with its residual takes at least the share "
        "v s(1 − |λ₂|²)/(1 + v(s + |λ₂|²(1 − s))) of the remaining diversity, with v the mean square gain of H."
    )
    differs: ClassVar[str] = (
        "The bound is one of expectations over random weights; here it is held against means over blocks."
    )
    would_decide: ClassVar[str] = "The registered study `rate`: forward passes alone, a third of an hour of a CPU core."
    for_if: ClassVar[str] = (
        "in the study `rate`, at every width and with both kinds of weights, the 95 % interval over seeds of the rate "
        "minus its bound, in the mean over blocks, lies at 0 or above"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly below 0"
    study: ClassVar[str] = "rate"
    asks: ClassVar[str] = "escalation is at least P2's bound"

    def findings(self, results: Results) -> Iterator[Finding]:
        """The escalation rate minus its bound."""
        for row, past in escalations(results, "bound"):
            outcome: Outcome = "for" if past.low >= 0 else "against" if past.high < 0 else "undecided"
            yield Finding(f"escalation rate minus its bound, post-norm, {_where(row)}", past, outcome)


@claim
class SimilarityCausesFailure(Studied):
    """Similarity, gradients and size of updates, set independently of one another."""

    id: ClassVar[str] = "similarity-causes-failure"
    number: ClassVar[int] = 24
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = "the depth problem is caused by token similarity escalation"
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P2", "v2", "abstract")
    reading: ClassVar[str] = (
        "Where the similarity of tokens, the gradients and the size of updates of a post-norm model of 24 blocks are "
        "set apart from one another, it is t_div at initialisation that tells whether it trains."
    )
    differs: ClassVar[str] = (
        "That a quantity tells, under interventions, what trains is weaker than that it is the cause, and stronger "
        "than that it goes along with it."
    )
    would_decide: ClassVar[str] = "The registered study `cause`, on a CPU."
    for_if: ClassVar[str] = (
        "in the study `cause` a threshold on log t_div tells best what trains, on interventions that it has not seen, "
        "with the balanced accuracy that is registered, and leads the next variable with an interval above 0"
    )
    against_if: ClassVar[str] = "another variable leads so"
    study: ClassVar[str] = "cause"
    asks: ClassVar[str] = "what decides"

    def findings(self, results: Results) -> Iterator[Finding]:
        """By how much one variable tells better than the next whether a network trains."""
        lead = results.get("lead")
        if lead:
            found = at_this_level({**lead, "count": 2000})
            told = results["claims"][self.asks]
            decided = found.low > 0 and told != "undecided"
            outcome: Outcome = "undecided" if not decided else "for" if lead["of"] == _SIMILARITY else "against"
            yield Finding(f"balanced accuracy, {lead['of']} minus {lead['over']}", found, outcome)
            for name, value in results.get("balanced_accuracy", {}).items():
                yield Finding(f"balanced accuracy of {name}", Interval(value, float("-inf"), float("inf"), 1))


@claim
class DeescalationText(Studied):
    """De-escalation with means over what came before."""

    id: ClassVar[str] = "deescalation-text"
    number: ClassVar[int] = 27
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = "De-escalation improves deep post-norm Transformer-XL models on WikiText-103."
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source("P2", "v2", "public summaries")
    reading: ClassVar[str] = (
        "A post-norm language model of characters has a lower test loss with de-escalation by prefix means than "
        "without, each at its own rate."
    )
    differs: ClassVar[str] = "Characters, a small decoder without memory, not Transformer-XL on words."
    would_decide: ClassVar[str] = "The registered study `text`: with and without de-escalation, three seeds, on a CPU."
    for_if: ClassVar[str] = (
        "in the study `text` the 95 % interval over seeds of the test loss with de-escalation minus without lies "
        "below 0"
    )
    against_if: ClassVar[str] = "that interval lies wholly above 0"
    study: ClassVar[str] = "text"
    asks: ClassVar[str] = "deescalation-text"
