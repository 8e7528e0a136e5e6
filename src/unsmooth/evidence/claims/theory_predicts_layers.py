"""Our naive reading of P1: in trained models too the largest |1 + λ| says whether a layer makes tokens more alike.

P1 compares the modes of the token mean with the others; that rule is a claim of its own, dominance-predicts-layers.

A rule never sees what leaves the layer. It is scored by balanced accuracy, the mean of
the shares right among layers that make tokens more alike and among those that make them less alike: 0.5 for any rule
that always says the same, however often it is right.

Its interval is the hull of two. Layers of one model are alike, so models are drawn with replacement, those that were
trained from one another as one, and the middle 95 % of 4,000 draws taken. That knows nothing of what no model at hand
shows: a rule that is right about none of ten falls has an interval of no width there. So the ends of the exact
intervals of the two shares, averaged, count too; they take layers for independent, and errors of both shares to go
together.

The layers of the models that `benchmarks.evidence_models` brings had been looked at before this rule was written: the
plain rule was known to say "more alike" nearly always, with a balanced accuracy of 0.50, and what weighs modes by the
energy of real activations to do better. Our own three models had not been looked at. They do not decide, since two of
them have the eigenvalues that their training was to give them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy

from unsmooth.evidence.bench import Bench, Specimen
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.evidence.finding import Finding, Judgement, Wording, above, judged
from unsmooth.evidence.interval import Interval, level, share
from unsmooth.evidence.specimens import at_hand, family
from unsmooth.explaining import Explanation, explain, load_explanation
from unsmooth.explaining.result import LayerFinding

PLAIN, DOMINANCE = "eigenvalue", "dominance"
# As near as eigenvalues of float32 weights can be told from 1.
ROUNDING = 1e-6
THRESHOLD = 0.6
SEED, DRAWS = 0, 4000

Model = Mapping[str, Any]


@claim
class TheoryPredictsLayers(Claim):
    """Predicted against measured change of t_sim, layer by layer, over the models at hand."""

    id: ClassVar[str] = "theory-predicts-layers"
    number: ClassVar[int] = 29
    section: ClassVar[Section] = "our own"
    quote: ClassVar[str] = (
        "A layer of a trained model makes tokens more alike where the largest |1 + λ| of its H is above 1."
    )
    wording: ClassVar[Wording] = "ours"
    source: ClassVar[Source] = Source("P1", "", "our naive carrying-over of its condition on the eigenvalues of H")
    reading: ClassVar[str] = (
        "In trained models too the eigenvalues of H decide whether a layer makes tokens more alike: it does where "
        "the largest |1 + λ| is above 1."
    )
    would_decide: ClassVar[str] = (
        "More layers that make tokens less alike: models of two more lineages, minutes of a CPU each."
    )
    for_if: ClassVar[str] = (
        "the 95 % interval of the plain eigenvalue rule's balanced accuracy over the layers of models that others "
        f"trained lies above {THRESHOLD} (chance: 0.5)"
    )
    against_if: ClassVar[str] = f"that interval lies below {THRESHOLD}"

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """That of the draws of models."""
        return (SEED,)

    def measure(self, bench: Bench) -> dict[str, Any]:
        """What every rule predicts for each layer, and what was measured."""
        return {"models": [_measured(one) for one in at_hand(bench)]}

    def judge(self, measured: Measured) -> Judgement:
        """The plain rule decides; the others stand beside it, and our own models apart."""
        return judge_rule(measured, PLAIN)

    def figure(self, measured: Measured) -> Figure:
        """Every rule's balanced accuracy, and the plain rule layer by layer."""
        groups = {"trained by others": _groups(measured["models"])[0], "trained here": _groups(measured["models"])[1]}
        shown = {name: models for name, models in groups.items() if models} or {"random": measured["models"]}
        return Figure(
            "Left: balanced accuracy of each rule about the direction in which a layer moves t_sim, with its 95 % "
            "interval; 0.5 is chance. Right: every layer; the plain rule says that those right of 0 make tokens more "
            "alike, and they do above 0.",
            [
                Panel(
                    "rules",
                    "rule",
                    "balanced accuracy",
                    [_scores(name, models, rules_of(measured)) for name, models in shown.items()],
                    reference=0.5,
                ),
                Panel(
                    "layers",
                    "log of the largest |1 + λ|",
                    "change of t_sim",
                    [_scatter(model) for models in shown.values() for model in models],
                    reference=0.0,
                ),
            ],
        )


def judge_rule(measured: Measured, rule: str) -> Judgement:
    """Whether a rule's balanced accuracy lies above the threshold; of all others it is reported."""
    others, ours = _groups(measured["models"])
    headline = balanced_accuracy(others, rule)
    findings = [Finding(_about(rule, "t_sim"), headline, above(headline, THRESHOLD))]
    names = [rule, *(name for name in rules_of(measured) if name != rule)]
    if others:
        findings.append(Finding(_about(rule, "the mean cosine"), balanced_accuracy(others, rule, "cosine")))
        findings += [Finding(_about(name, "t_sim"), balanced_accuracy(others, name)) for name in names[1:]]
    if ours:
        findings += [
            Finding(f"balanced accuracy of rule {name}, our own models", balanced_accuracy(ours, name))
            for name in names
        ]
    for model in ours:
        findings += _alone(model, rule)
    return judged(findings, _words(others, measured["models"], rule))


def rules_of(measured: Measured) -> list[str]:
    """Rules that were scored when the layers were measured."""
    layers = [layer for model in measured["models"] for layer in model["layers"]]
    return [name for name in (layers[0] if layers else ()) if name not in ("measured", "cosine")]


def _measured(specimen: Specimen) -> dict[str, Any]:
    found = _explained(specimen)
    return {
        "name": specimen.name,
        "lineage": family(specimen),
        "ours": specimen.ours,
        "trained": specimen.trained,
        "sequences": found.manifest["data"]["sequences"],
        "weights_sha256": found.manifest["model"]["weights_sha256"],
        "layers": [_layer(one) for one in found.layers],
    }


def _explained(specimen: Specimen) -> Explanation:
    """As saved where it was explained before."""
    if specimen.explained is not None and (Path(specimen.explained) / "manifest.json").is_file():
        return load_explanation(specimen.explained)
    return explain(specimen.load(), specimen.data(), jacobian=False, progress=False, **specimen.options)


def _layer(one: LayerFinding) -> dict[str, float | None]:
    known = one.cosine_before is not None and one.cosine_after is not None
    cosine = (one.cosine_after or 0.0) - (one.cosine_before or 0.0) if known else None
    found = {"measured": one.measured, "cosine": cosine, PLAIN: _largest_eigenvalue(one)}
    found[DOMINANCE] = None if one.rest_modulus is None else one.margin
    return {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}


def _largest_eigenvalue(one: LayerFinding) -> float:
    """A norm that takes the mean out leaves H an eigenvalue of 0, and 1 + 0 is not above 1, however it is rounded."""
    modulus = one.mean_modulus
    if abs(modulus - 1) < ROUNDING:
        return 0.0
    return math.log(modulus) if modulus > 0 else -math.inf


def balanced_accuracy(models: Sequence[Model], rule: str, of: str = "measured") -> Interval:
    """Balanced accuracy of a rule over the layers of all models, with the interval that the module speaks of.

    Nothing is known of it where layers all go one way.

    >>> layers = [{"measured": 0.1, "r": 1.0}] * 30 + [{"measured": -0.1, "r": -1.0}] * 30
    >>> print(balanced_accuracy([{"lineage": "a", "layers": layers}], "r"))
    1 [0.884, 1]
    """
    counts_K4 = _counts(models, rule, of)
    total_4 = counts_K4.sum(axis=0)
    if not total_4[1] or not total_4[3]:
        return Interval(0.5, 0.0, 1.0, len(counts_K4))
    drawn = numpy.random.default_rng(SEED).integers(len(counts_K4), size=(DRAWS, len(counts_K4)))
    sums_D4 = counts_K4[drawn].sum(axis=1)
    values_D = _balanced(sums_D4[(sums_D4[:, 1] > 0) & (sums_D4[:, 3] > 0)])
    low, high = numpy.quantile(values_D, [(1 - level()) / 2, (1 + level()) / 2]).tolist()
    rises, falls = (share(int(total_4[place]), int(total_4[place + 1])) for place in (0, 2))
    return Interval(
        value=float(_balanced(total_4[None])[0]),
        low=min(low, (rises.low + falls.low) / 2),
        high=max(high, (rises.high + falls.high) / 2),
        count=len(counts_K4),
    )


def _counts(models: Sequence[Model], rule: str, of: str = "measured") -> numpy.ndarray[Any, Any]:
    """For each lineage: rises that were foretold, rises, falls that were foretold, falls; a predicted 0 is a fall."""
    found: dict[str, list[int]] = {}
    for model in models:
        counts = found.setdefault(model["lineage"], [0, 0, 0, 0])
        for layer in model["layers"]:
            predicted, measured = layer[rule], layer[of]
            if predicted is not None and measured is not None:
                place = 0 if measured > 0 else 2
                counts[place] += (predicted > 0) == (measured > 0)
                counts[place + 1] += 1
    return numpy.array(list(found.values()), dtype=int).reshape(-1, 4)


def _balanced(counts_D4: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    right_rises, rises, right_falls, falls = counts_D4.T
    mean: numpy.ndarray[Any, Any] = (right_rises / rises + right_falls / falls) / 2
    return mean


def _groups(models: Sequence[Model]) -> tuple[list[Model], list[Model]]:
    """Those that others trained, and ours; random weights are in neither."""
    trained = [model for model in models if model["trained"]]
    return [model for model in trained if not model["ours"]], [model for model in trained if model["ours"]]


def _about(rule: str, direction: str) -> str:
    return f"balanced accuracy of rule {rule} about {direction}, models trained by others"


def _alone(model: Model, rule: str) -> list[Finding]:
    """How one of our models goes, and what the rule says of it: its layers may all go one way."""
    right_rises, rises, right_falls, falls = _counts([model], rule).sum(axis=0).tolist()
    if not rises + falls:
        return []
    said = right_rises + falls - right_falls
    return [
        Finding(f"share of layers that raise t_sim, {model['name']}", share(rises, rises + falls)),
        Finding(f"share of layers said to by rule {rule}, {model['name']}", share(said, rises + falls)),
    ]


def _words(others: Sequence[Model], everything: Sequence[Model], rule: str) -> str:
    right_rises, rises, right_falls, falls = _counts(others, rule).sum(axis=0).tolist()
    if not rises + falls:
        return f"No model that others trained was at hand, only {', '.join(model['name'] for model in everything)}."
    return (
        f"t_sim rises over {rises} and falls over {falls} layers of {len(others)} models that others trained. Rule "
        f"{rule} finds {right_rises} of the rises and {right_falls} of the falls: {right_rises + right_falls} right, "
        f"where always guessing the commoner gets {max(rises, falls)}."
    )


def _scores(name: str, models: Sequence[Model], rules: Sequence[str]) -> Series:
    found = [balanced_accuracy(models, rule) for rule in rules]
    low, high = [one.low for one in found], [one.high for one in found]
    return Series(name, list(rules), [one.value for one in found], low, high, mark="points")


def _scatter(model: Model) -> Series:
    layers = [layer for layer in model["layers"] if layer[PLAIN] is not None and layer["measured"] is not None]
    return Series(
        str(model["name"]), [one[PLAIN] for one in layers], [one["measured"] for one in layers], mark="points"
    )
