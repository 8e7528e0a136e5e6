"""P2's spectral gap: the second eigenvalue of attention with random logits falls as the context grows."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from unsmooth.evidence.bench import Bench
from unsmooth.evidence.claim import Claim, Measured, Section, Source, claim
from unsmooth.evidence.figure import Figure, Panel, Series
from unsmooth.evidence.finding import Finding, Judgement, Wording, judged, within
from unsmooth.evidence.interval import over_seeds
from unsmooth.models.anatomy import find_anatomy
from unsmooth.networks import ViT, ViTConfig
from unsmooth.numbers import Precision
from unsmooth.spectra import attention_spectrum
from unsmooth.theory import random_attention

ASKED, ONLY_SHOWN = (0.25, 0.5, 1.0), (2.0,)
EXPONENT, RATIO = (-0.55, -0.45), (0.9, 1.1)
# Below, terms of higher order in 1/n still show.
FROM = 64
SEED_OF_MAPS = 40_000_000


@claim
class SecondEigenvalueFalls(Claim):
    """The circular law: independent rows fill a disc of radius √(n Var), with Var(P_ij) ≈ (exp(σ²) − 1)/n².

    The exponent is that of a line through log |λ₂| over log n from 64 tokens on, one per seed. With σ of 2 the logits'
    exponentials have tails too heavy for these n; that is shown, not asked.
    """

    id: ClassVar[str] = "second-eigenvalue-falls"
    number: ClassVar[int] = 5
    section: ClassVar[Section] = "identities checked numerically"
    quote: ClassVar[str] = (
        "The second eigenvalue of softmax attention with independent normal logits falls as √((exp(σ²) − 1)/n)."
    )
    wording: ClassVar[Wording] = "ours"
    source: ClassVar[Source] = Source("P2", "", "bears on its spectral gaps; the formula is ours")
    reading: ClassVar[str] = (
        "The second eigenvalue of softmax attention over n tokens with independent normal logits of standard "
        "deviation σ ≤ 1 falls like 1/√n, as √((exp(σ²) − 1)/n)."
    )
    would_decide: ClassVar[str] = "Nothing is left to decide for random logits; for trained attention see spectral-gap."
    for_if: ClassVar[str] = (
        "for σ of 0.25, 0.5 and 1 the 95 % intervals over seeds of the exponent of |λ₂| in n, from 64 tokens on, and "
        "of |λ₂| over √((exp(σ²) − 1)/n) at the largest n lie within [−0.55, −0.45] and [0.9, 1.1]"
    )
    against_if: ClassVar[str] = "one of these intervals lies wholly outside"

    def seeds(self, bench: Bench) -> tuple[int, ...]:
        """Of logits, and of the initialised network."""
        return tuple(range(bench.pick(4, 6, 16)))

    def measure(self, bench: Bench) -> dict[str, Any]:
        """|λ₂| and ‖(I − Π)P(I − Π)‖₂ by σ, n and seed, and those of a network nobody has trained."""
        sizes = bench.pick((16, 64, 128, 192), (16, 32, 64, 128, 256, 512), (16, 32, 64, 128, 256, 512, 1024))
        # Small maps are cheap and scatter more: as many as make up the largest, or twice that.
        most, whole = bench.pick((4, 1), (8, 1), (16, 2))
        seeds = self.seeds(bench)
        found = {
            f"{std:g}": [_of_size(std, n, seeds, min(most, whole * max(sizes) // n)) for n in sizes]
            for std in (*ASKED, *ONLY_SHOWN)
        }
        return {"sizes": list(sizes), "random": found, "initialised": [_initialised(seed) for seed in seeds[:4]]}

    def judge(self, measured: Measured) -> Judgement:
        """An exponent and a ratio per σ."""
        found = []
        for std in (*ASKED, *ONLY_SHOWN):
            interval = over_seeds(_exponents(measured, std))
            outcome = within(interval, *EXPONENT) if std in ASKED else None
            found.append(Finding(f"exponent of |λ₂| in n, σ = {std:g}", interval, outcome))
        largest = measured["sizes"][-1]
        for std in ASKED:
            last = measured["random"][f"{std:g}"][-1]
            over = over_seeds([value / radius(std, largest) for value in last["second"]])
            what = f"|λ₂| over the formula at n = {largest}, σ = {std:g}"
            found.append(Finding(what, over, within(over, *RATIO)))
            twice = [norm / value for norm, value in zip(last["norm"], last["second"], strict=True)]
            found.append(Finding(f"norm on differences over |λ₂| at n = {largest}, σ = {std:g}", over_seeds(twice)))
        for key, what in (
            ("std", "standard deviation of logits"),
            ("second", "|λ₂|"),
            ("over", "|λ₂| over the formula"),
        ):
            values = over_seeds([one[key] for one in measured["initialised"]])
            found.append(Finding(f"{what} in an untrained ViT, 65 tokens, mean over layers and heads", values))
        exponents = ", ".join(Precision()(one.interval.value) for one in found[: len(ASKED)])
        return judged(found, f"|λ₂| falls with exponents of {exponents} at σ of 0.25, 0.5 and 1.")

    def figure(self, measured: Measured) -> Figure:
        """|λ₂| over n."""
        sizes, panels = measured["sizes"], []
        for key, title in (("second", "|λ₂|"), ("norm", "norm on differences")):
            series = []
            for std in (*ASKED, *ONLY_SHOWN):
                intervals = [over_seeds(one[key]) for one in measured["random"][f"{std:g}"]]
                low, high = [one.low for one in intervals], [one.high for one in intervals]
                series.append(Series(f"σ = {std:g}", sizes, [one.value for one in intervals], low, high, mark="points"))
                if std in ASKED:
                    factor = 1.0 if key == "second" else 2.0
                    formula = [factor * radius(std, n) for n in sizes]
                    series.append(Series(f"σ = {std:g}, formula", sizes, formula, mark="dashed"))
            panels.append(Panel(title, "tokens", title, series, log_x=True, log_y=True))
        return Figure("Attention from random logits: its second eigenvalue and its norm fall as 1/√n.", panels)


def radius(std: float, tokens: int) -> float:
    r"""√((exp(σ²) − 1)/n).

    >>> round(radius(1.0, 1024), 3)
    0.041
    """
    return math.sqrt(math.expm1(std**2) / tokens)


def _of_size(std: float, tokens: int, seeds: tuple[int, ...], maps: int) -> dict[str, list[float]]:
    """Means over some maps, one per seed."""
    found: dict[str, list[float]] = {"second": [], "norm": []}
    for seed in seeds:
        drawn = [
            random_attention(tokens, seed=SEED_OF_MAPS + 1000 * seed + one, logit_std=std).unsqueeze(0)
            for one in range(maps)
        ]
        spectra = [attention_spectrum(map_1NN, causal=False) for map_1NN in drawn]
        found["second"].append(math.fsum(float(one.second_eigenvalue) for one in spectra) / maps)
        found["norm"].append(math.fsum(float(one.quotient_norm) for one in spectra) / maps)
    return found


def _exponents(measured: Measured, std: float) -> list[float]:
    places = [place for place, n in enumerate(measured["sizes"]) if n >= FROM]
    logs = numpy.log([measured["sizes"][place] for place in places])
    by_size = [measured["random"][f"{std:g}"][place]["second"] for place in places]
    return [float(numpy.polyfit(logs, numpy.log(values), 1)[0]) for values in zip(*by_size, strict=True)]


def _initialised(seed: int) -> dict[str, float]:
    """What logits and |λ₂| are in a ViT-Ti with fresh weights (Glorot & Bengio), on random pixels."""
    model = ViT(ViTConfig(depth=4, patch=4, init="xavier"), seed=seed).eval()
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    maps: list[Tensor] = []
    with torch.no_grad(), find_anatomy(model).watch_attention(lambda layer, found: maps.append(found.double())):
        model(images)
    maps_HNN = torch.cat([found.flatten(0, 1) for found in maps])
    # A row's logits are known from its attention up to a constant, which their spread does not see.
    std = maps_HNN.log().std(dim=-1).mean().item()
    second = attention_spectrum(maps_HNN, causal=False).second_eigenvalue.mean().item()
    return {"std": std, "second": second, "over": second / radius(std, maps_HNN.shape[-1])}
