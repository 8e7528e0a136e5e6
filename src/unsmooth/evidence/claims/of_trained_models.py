"""Claims about trained models that were registered before they were measured, in trained_models.json.

The registration names for each a quantity of a model, and the side of a threshold on which its mean over lineages is to
lie. Models that were trained from one another are one lineage; models trained here do not decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, ClassVar

from unsmooth.evidence.claim import CLAIMS, Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.evidence.finding import Finding, Judgement, Wording, above, below
from unsmooth.evidence.interval import over_seeds
from unsmooth.evidence.records import Record, Store
from unsmooth.evidence.registered import Awaiting

REGISTRATION: Mapping[str, Any] = json.loads(
    files("unsmooth.evidence").joinpath("trained_models.json").read_text(encoding="utf-8")
)
REGISTERED: Mapping[str, Mapping[str, Any]] = {one["id"]: one for one in REGISTRATION["claims"]}
DECIDES = ("quantity", "reading", "side", "threshold")


class OfTrainedModels(Awaiting):
    """Reading and rule are those of the registration."""

    section: ClassVar[Section] = "trained models"
    waits_for: ClassVar[str] = "benchmarks.trained_models.explain"
    would_decide: ClassVar[str] = (
        "The registered measurement, `python -m benchmarks.trained_models.explain`; more lineages where it was run: "
        "minutes of a CPU each."
    )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        one = REGISTERED[cls.id]
        other = {"above": "below", "below": "above"}[one["side"]]
        cls.reading = f"{one['statement']} Measured as: {one['reading']}."
        cls.for_if = (
            f"the 95 % interval over lineages of that quantity, in models that others trained, lies {one['side']} "
            f"{one['threshold']:g}"
        )
        cls.against_if = f"that interval lies {other} {one['threshold']:g}"

    def judge(self, measured: Measured) -> Judgement:
        """The mean over lineages against the threshold."""
        one, lineages = REGISTERED[self.id], measured["lineages"]
        if not lineages:
            return Judgement((), "No lineage has such a number.", "undecided")
        mean = over_seeds(list(lineages.values()))
        outcome = {"above": above, "below": below}[one["side"]](mean, one["threshold"])
        low, high = min(lineages, key=lineages.__getitem__), max(lineages, key=lineages.__getitem__)
        words = f"From {lineages[low]:.3g} ({low}) to {lineages[high]:.3g} ({high}) over {len(lineages)} lineages."
        return Judgement(
            (Finding(f"{one['quantity'].replace('_', ' ')}, mean over lineages", mean, outcome),), words, outcome
        )

    def figure(self, measured: Measured) -> Figure:
        """Each lineage, and the threshold."""
        one, lineages = REGISTERED[self.id], measured["lineages"]
        name = str(one["quantity"]).replace("_", " ")
        points = Series(name, list(lineages), list(lineages.values()), mark="points")
        panel = Panel("by lineage", "lineage", name, [points] if lineages else [], reference=float(one["threshold"]))
        return Figure(
            f"{one['reading'][0].upper()}{one['reading'][1:]}; the line is the threshold of the rule.", [panel]
        )


def take_trained_models(results: Mapping[str, Any], store: Store, made: Mapping[str, Any]) -> list[Record]:
    """Write what was measured of trained models as records of their claims; what another registration asked is left.

    Args:
        results: What the benchmark wrote.
        store: Where records are.
        made: What made them.
    """
    taken = []
    for row in results["claims"]:
        registered = REGISTERED.get(row["id"])
        if registered is None or any(row[key] != registered[key] for key in DECIDES):
            continue
        one = CLAIMS[row["id"]]
        measured = {"lineages": row["lineages"], **{key: row[key] for key in DECIDES}}
        record = Record(one.id, "full", (), one.rule, made, measured)
        one.judge(measured)
        store.write_claim(record)
        taken.append(record)
    return taken


@claim
class DominanceTellsSimilarity(OfTrainedModels):
    """Share of heads by verdict, against what layers do."""

    id: ClassVar[str] = "dominance-tells-similarity"
    number: ClassVar[int] = 9
    quote: ClassVar[str] = (
        "The eigenvalue type that dominates the heads of a layer goes with the similarity that results."
    )
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source("P1", "v1", "a table of the first version, as its public reviews tell of it")
    differs: ClassVar[str] = (
        "The table is of models trained on CIFAR; these are models that others trained, most of them on text."
    )


@claim
class NotAllHeadsSmooth(OfTrainedModels):
    """Heads that avoid what the paper calls oversmoothing."""

    id: ClassVar[str] = "not-all-heads-smooth"
    number: ClassVar[int] = 10
    quote: ClassVar[str] = (
        "We show that many successful Transformer models have attention and weights which satisfy conditions that "
        "avoid oversmoothing."
    )
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v1", "abstract")
    differs: ClassVar[str] = (
        "The conditions are reconstructed, and asked of heads: the sentence is of models. One head in ten is a small "
        "part."
    )


@claim
class NegativeNormWeightsMatter(OfTrainedModels):
    """Signs of norm weights, ablated."""

    id: ClassVar[str] = "negative-norm-weights-matter"
    number: ClassVar[int] = 11
    quote: ClassVar[str] = "the sign of layer normalization weights can influence this effect"
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P1", "v3", "abstract")
    differs: ClassVar[str] = (
        '"Can" asks for one model; we ask for the mean over lineages that have negative weights. Setting weights to '
        "their modulus also changes what later layers are given."
    )


@claim
class AnglesConverge(OfTrainedModels):
    """A rate of its own, beside that of the rank."""

    id: ClassVar[str] = "angles-converge"
    number: ClassVar[int] = 12
    quote: ClassVar[str] = "Angle convergence is possible, but not guaranteed."
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source("P1", "v3", "a public review")
    differs: ClassVar[str] = (
        "The sentence is of a limit of an idealised layer; this is a slope over the layers of trained models."
    )


@claim
class RankCollapses(OfTrainedModels):
    """A rate of its own, beside that of the angles."""

    id: ClassVar[str] = "rank-collapses"
    number: ClassVar[int] = 13
    quote: ClassVar[str] = "Rank collapse is likely, but not required."
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source("P1", "v3", "a public review")
    differs: ClassVar[str] = (
        "The sentence is of a limit of an idealised layer; this is a slope over the layers of trained models."
    )


@claim
class TrainedAttentionHasAGap(OfTrainedModels):
    """The second eigenvalue of measured attention."""

    id: ClassVar[str] = "trained-attention-has-a-gap"
    number: ClassVar[int] = 14
    quote: ClassVar[str] = "large spectral gaps of attention matrices"
    wording: ClassVar[Wording] = "verbatim"
    source: ClassVar[Source] = Source("P2", "v2", "abstract")
    differs: ClassVar[str] = (
        "How large is not said, nor of which matrices: half of the spectral radius is ours. Of a causal map "
        "eigenvalues are its diagonal, and say little about the layer."
    )


@claim
class GapIsSmallerThanChance(OfTrainedModels):
    """Beside softmaxes of random logits."""

    id: ClassVar[str] = "gap-is-smaller-than-chance"
    number: ClassVar[int] = 32
    section: ClassVar[Section] = "our own"
    quote: ClassVar[str] = (
        "Trained attention has a smaller spectral gap than softmaxes of random logits at its entropy."
    )
    wording: ClassVar[Wording] = "ours"
    source: ClassVar[Source] = Source("P2", "", "bears on its spectral gaps")
