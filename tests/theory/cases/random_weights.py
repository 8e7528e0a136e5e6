"""Random weights, as at initialisation: similarity escalates whatever the sign, at a rate the gap sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
import torch
from torch import Tensor

from tests.theory.case import BEYOND_P2, P2, Comparison, Setup, case
from tests.theory.cases._tools import eigenvalues
from unsmooth.functional import escalation_rate
from unsmooth.theory.iterate import Trajectory
from unsmooth.theory.maps import drawn, lazy_attention, random_attention

GROUP = "Random weights"
TOKENS, DIM, DRAWS = 16, 64, 1000


@dataclass(frozen=True)
class _Rates:
    measured: float
    standard_error: float
    closed_form: float
    floor: float


def _tokens() -> Tensor:
    return drawn(TOKENS, DIM, seed=120) + 0.4 * drawn(1, DIM, seed=121)


def _rates(second: float, x_ND: Tensor, similarity: float) -> _Rates:
    """Mean escalation rate over draws of W with E[WWᵀ] = I, and what the theory says."""
    weights = drawn(DRAWS, DIM, DIM, seed=122) / DIM**0.5
    after = x_ND + lazy_attention(TOKENS, second) @ x_ND @ weights
    rates = escalation_rate(x_ND.expand(DRAWS, -1, -1), after)
    top = similarity * (1.0 - second**2)
    return _Rates(
        measured=rates.mean().item(),
        standard_error=rates.std().item() / DRAWS**0.5,
        closed_form=top / (1.0 + similarity + second**2 * (1.0 - similarity)),
        floor=top / 2.0,
    )


@case(
    lambda: Setup(lazy_attention(TOKENS, 0.3), drawn(DIM, DIM, seed=123) / DIM**0.5, _tokens(), depth=1),
    name="escalation-rate",
    group=GROUP,
    description="X + PXW with zero-mean W, E[WWᵀ] = I, and P whose other eigenvalues all have modulus |λ₂|: the share "
    "of diversity lost is about s(1 − |λ₂|²)/(1 + s + |λ₂|²(1 − s)), with s = t_sim(X), and at least s(1 − |λ₂|²)/2. "
    "The closed form is a ratio of expectations, so approximate.",
    paper=f"{P2}; the closed form extends it",
    predicted="E r follows the closed form and stays above the floor",
)
def _escalation(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    similarity = trajectory.token_similarity[0].item()
    comparisons = []
    for second in (0.0, 0.3, 0.8):
        rates = _rates(second, setup.x0, similarity)
        near = 0.05 * rates.closed_form + 4.0 * rates.standard_error
        comparisons += [
            Comparison(f"E r at |λ₂| = {second}", rates.measured, "≈", rates.closed_form, tolerance=near),
            Comparison(f"E r at |λ₂| = {second} over its floor", rates.measured, ">", rates.floor),
        ]
    return comparisons


def _second(attention: Tensor) -> tuple[float, float]:
    """|λ₂| and ‖(I − Π)A(I − Π)‖₂."""
    moduli = np.sort(np.abs(eigenvalues(attention)))[::-1]
    centred = attention - attention.mean(dim=0)
    centred = centred - centred.mean(dim=1, keepdim=True)
    return float(moduli[1]), torch.linalg.matrix_norm(centred, 2).item()


@case(
    lambda: Setup(random_attention(256, seed=130), drawn(4, 4, seed=131) / 2.0, drawn(256, 4, seed=132), depth=1),
    name="random-logits-gap",
    group=GROUP,
    description="Attention over n tokens from normal logits of variance σ² has |λ₂| ≈ √((exp(σ²) − 1)/n), and about "
    "twice that as norm on the differences: at initialisation the gap is wide, and wider in longer contexts.",
    paper=BEYOND_P2,
    predicted="|λ₂| ≈ √((exp(σ²) − 1)/n)",
)
def _gap(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    comparisons = []
    for n, std in ((64, 0.5), (64, 1.0), (256, 0.5), (256, 1.0)):
        pairs = [_second(random_attention(n, seed=1300 + draw, logit_std=std)) for draw in range(4)]
        modulus, norm = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
        closed = sqrt((exp(std**2) - 1.0) / n)
        comparisons += [
            Comparison(f"|λ₂| at n = {n}, σ = {std}", modulus, "≈", closed, tolerance=0.2 * closed),
            Comparison(f"norm at n = {n}, σ = {std}", norm, "≈", 2.0 * closed, tolerance=0.5 * closed),
        ]
    return comparisons


@case(
    lambda: Setup(
        random_attention(16, seed=136, logit_std=3.0), drawn(4, 4, seed=134) / 2.0, drawn(16, 4, seed=135), depth=1
    ),
    name="gap-is-no-one-step-bound",
    group=GROUP,
    description="|λ₂| is a rate in the long run. One layer of a map that is not normal can grow differences by "
    "‖(I − Π)A(I − Π)‖₂, which is larger and may exceed 1.",
    paper=BEYOND_P2,
    predicted="the norm on the differences exceeds |λ₂|, and 1",
)
def _no_bound(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    modulus, norm = _second(setup.map_NN)
    return [Comparison("|λ₂|", modulus, "<", 1.0), Comparison("norm on the differences", norm, ">", 1.0)]
