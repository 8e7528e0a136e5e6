"""P1's reason for a symmetric H: training by itself makes the product of value and output weights less asymmetric."""

from __future__ import annotations

from statistics import fmean
from typing import Any, ClassVar

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series, with_intervals
from unsmooth.evidence.finding import Finding, Judgement, Wording, below
from unsmooth.evidence.interval import Interval, over_seeds, paired
from unsmooth.evidence.records import Trained

RANDOM = 0.5**0.5
"""Asymmetry of a large matrix of independent entries: H and Hᵀ are nearly orthogonal, so ‖H − Hᵀ‖ ≈ √2‖H‖."""


@claim
class AsymmetryFalls(Claim):
    """Asymmetry ‖H − Hᵀ‖_F / (2‖H‖_F) of the plain models, mean over layers, paired by seed."""

    id: ClassVar[str] = "asymmetry-falls"
    number: ClassVar[int] = 20
    section: ClassVar[Section] = "training"
    quote: ClassVar[str] = "During training ‖H − Hᵀ‖ relative to ‖H‖ falls, from about 0.95 to about 0.7."
    wording: ClassVar[Wording] = "reconstructed"
    source: ClassVar[Source] = Source(
        "P1", "v1", "a figure of the first version, where it motivates a symmetric H, as its public reviews tell of it"
    )
    reading: ClassVar[str] = (
        "In training, the product H of value and output weights becomes less asymmetric than it was with random "
        "weights, though nothing constrains it."
    )
    differs: ClassVar[str] = (
        "The figure's normalisation is not known: here ‖H − Hᵀ‖/(2‖H‖), 0.707 for random weights. Only the "
        "direction is judged."
    )
    would_decide: ClassVar[str] = "The same three runs for 300 epochs."
    for_if: ClassVar[str] = (
        "the 95 % interval over seeds of ‖H − Hᵀ‖/(2‖H‖) of the plain models, mean over layers, after training minus "
        "before, lies below 0"
    )
    against_if: ClassVar[str] = "that interval lies wholly above 0"
    studies: ClassVar[tuple[str, ...]] = ("steering",)

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Of the plain models over training, layer by layer; of the others the largest at any layer and moment."""
        runs = bench.study("steering")
        return {
            "plain": {
                str(seed): [{"epoch": moment["epoch"], "layers": layers} for moment, layers in _moments(run)]
                for seed, run in runs["plain"].items()
            },
            "largest": {
                variant: {str(seed): max(max(layers) for _, layers in _moments(run)) for seed, run in by_seed.items()}
                for variant, by_seed in runs.items()
                if variant != "plain"
            },
        }

    def judge(self, measured: Measured) -> Judgement:
        """After minus before."""
        before, after = (_means(measured, moment) for moment in (0, -1))
        fall = paired(after, before)
        share = over_seeds([_falling(moments) for moments in measured["plain"].values()])
        findings = (
            Finding("asymmetry of H, mean over layers, after training minus before", fall, below(fall)),
            Finding("before training (0.707 for independent entries)", over_seeds(list(before.values()))),
            Finding("after training", over_seeds(list(after.values()))),
            Finding("share of layers in which it falls", share),
            *(
                Finding(f"largest of {variant}, symmetric by construction", over_seeds(list(by_seed.values())))
                for variant, by_seed in measured["largest"].items()
            ),
        )
        words = (
            f"From {fmean(before.values()):.3f} to {fmean(after.values()):.3f}, mean over layers; it falls in "
            f"{share.value:.0%} of them."
        )
        return Judgement(findings, words, below(fall))

    def figure(self, measured: Measured) -> Figure:
        """Over training, and by layer."""
        runs = list(measured["plain"].values())
        epochs = [moment["epoch"] for moment in runs[0]]
        over_training = [over_seeds([fmean(run[place]["layers"]) for run in runs]) for place in range(len(epochs))]
        up, many = "‖H − Hᵀ‖ / (2‖H‖)", len(runs[0][0]["layers"])
        by_layer = [
            with_intervals(name, list(range(1, many + 1)), [_at(runs, moment, layer) for layer in range(many)])
            for name, moment in (("before training", 0), ("after training", -1))
        ]
        mean = with_intervals("mean over layers", epochs, over_training)
        return Figure(
            "Asymmetry of H in the plain models, mean and 95 % interval over seeds; the line: random weights.",
            [
                Panel("over training", "epoch", up, [mean], reference=RANDOM),
                Panel("by layer", "layer", up, by_layer, reference=RANDOM),
                Panel("layer by layer, mean over seeds", "epoch", up, _layers(runs, epochs), reference=RANDOM),
            ],
        )


def _moments(run: Trained) -> list[tuple[dict[str, Any], list[float]]]:
    return [(dict(moment), [float(layer["asymmetry"]) for layer in moment["layers"]]) for moment in run.spectra]


def _means(measured: Measured, moment: int) -> dict[int, float]:
    return {int(seed): fmean(moments[moment]["layers"]) for seed, moments in measured["plain"].items()}


def _falling(moments: list[dict[str, Any]]) -> float:
    both = zip(moments[0]["layers"], moments[-1]["layers"], strict=True)
    return fmean(float(after < before) for before, after in both)


def _at(runs: list[Any], moment: int, layer: int) -> Interval:
    return over_seeds([run[moment]["layers"][layer] for run in runs])


def _layers(runs: list[Any], epochs: list[float]) -> list[Series]:
    return [
        Series(
            f"layer {layer + 1}",
            epochs,
            [fmean(run[place]["layers"][layer] for run in runs) for place in range(len(epochs))],
        )
        for layer in range(len(runs[0][0]["layers"]))
    ]
