"""P1's own comparison, the modes of the token mean with all others, against what layers of trained models do."""

from __future__ import annotations

from typing import ClassVar

from unsmooth.evidence.claim import CLAIMS, Claim, Measured, Section, Source, claim
from unsmooth.evidence.claims.theory_predicts_layers import DOMINANCE, THRESHOLD, judge_rule
from unsmooth.evidence.figure import Figure
from unsmooth.evidence.finding import Judgement, Wording


@claim
class DominancePredictsLayers(Claim):
    """Scored on the layers of theory-predicts-layers, by the same balanced accuracy."""

    id: ClassVar[str] = "dominance-predicts-layers"
    number: ClassVar[int] = 8
    section: ClassVar[Section] = "trained models"
    quote: ClassVar[str] = (
        "Theoretically, we show that smoothing behavior depends on the eigenspectrum of the value and projection "
        "weights. We verify this empirically"
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v3", "abstract")
    reading: ClassVar[str] = (
        "In trained models a layer makes tokens more alike where the modes of the token mean dominate, by the "
        "eigenvalues of its H and of the attention that was measured."
    )
    differs: ClassVar[str] = (
        "The sentence says that smoothing depends on the spectrum; we ask that its sign in a layer can be told from "
        "it. How the paper verified it, and on which models, is not known."
    )
    would_decide: ClassVar[str] = "More layers that make tokens less alike: models of four more lineages, on a CPU."
    for_if: ClassVar[str] = (
        "the 95 % interval of the dominance rule's balanced accuracy over the layers of models that others trained "
        f"lies above {THRESHOLD} (chance: 0.5)"
    )
    against_if: ClassVar[str] = f"that interval lies below {THRESHOLD}"
    measured_by: ClassVar[str] = "theory-predicts-layers"

    def judge(self, measured: Measured) -> Judgement:
        """The rule of dominance decides; the others stand beside it."""
        return judge_rule(measured, DOMINANCE)

    def figure(self, measured: Measured) -> Figure:
        """As of the claim that it is measured by."""
        return CLAIMS[self.measured_by].figure(measured)
