"""What the tokens become when one mode, or one pair, outgrows the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.theory.case import BEYOND_P1, LOW_PASS, P1, Comparison, Setup, case
from tests.theory.cases._tools import eigenvalues, line_turn, off_mean, real_vectors, up_to_sign
from unsmooth.theory.iterate import Trajectory
from unsmooth.theory.maps import cyclic_attention, drawn, random_attention, two_group_attention, with_eigenvalues
from unsmooth.theory.predict import predict, sign_cosine

GROUP = "Limits"


def _mean() -> Setup:
    h = with_eigenvalues([0.9, 0.4, -0.5, -0.2], seed=21)
    return Setup(random_attention(7, seed=20), h, drawn(7, 4, seed=22), depth=300)


@case(
    _mean,
    name="mean-dominates",
    group=GROUP,
    description="Where the mean dominates, X/‖X‖ goes to the line of 1(πᵀX₀r)wᵀ: π the left Perron vector of A, r and "
    "w the right and left eigenvectors of H at its dominating λ.",
    predicted="input convergence",
)
def _mean_limit(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    one, perron = real_vectors(setup.map_NN, 1.0)
    right, left = real_vectors(setup.h_DD, 0.9)
    wanted = torch.outer(one, left) * (perron @ setup.x0 @ right)
    rate = (trajectory.log_norm[-1] - trajectory.log_norm[-2]).item()
    return [
        Comparison("distance to the closed form", up_to_sign(trajectory.x_ND, wanted), "<", 1e-9),
        Comparison("growth per layer", float(torch.tensor(rate).exp()), "≈", 1.9, tolerance=1e-6),
        Comparison("final mean cosine", trajectory.mean_cosine[-1].item(), "≈", 1.0),
    ]


@case(
    lambda: Setup(
        random_attention(7, seed=23),
        with_eigenvalues([0.5 + 0.6j, 0.1, -0.5], seed=24),
        drawn(7, 4, seed=25),
        depth=400,
    ),
    name="mean-turns",
    group=GROUP,
    description="A complex pair of H at μ = 1 still makes all tokens equal; their common direction turns with depth.",
    paper=BEYOND_P1,
    predicted="input convergence",
)
def _mean_turns(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    last, before = trajectory.states_LND[-1, 0], trajectory.states_LND[-2, 0]
    return [Comparison("turn of the first token in one layer (1 − |cosine|)", line_turn(last, before), ">", 1e-3)]


def _lowest() -> Setup:
    h = with_eigenvalues([-0.8, -0.3, -0.2, -0.1], seed=27)
    return Setup(two_group_attention(5, 3, seed=26), h, drawn(8, 4, seed=28), depth=400)


@case(
    _lowest,
    name="lowest-mode",
    group=GROUP,
    description="A real simple μ < 1 with real λ dominates: rank one, tokens on a line with the signs of the mode v. "
    "As πᵀv = 0 these are mixed, so cosines are ±1 and their mean is ((n₊ − n₋)² − n)/(n(n − 1)), not 1.",
    paper=f"{P1}; the mean cosine extends it",
    predicted="collinear",
)
def _lowest_mode(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    v, _ = real_vectors(setup.map_NN, float(eigenvalues(setup.map_NN).real.min()))
    _, left = real_vectors(setup.h_DD, -0.8)
    closed = sign_cosine(int((v > 0).sum()), int((v < 0).sum()))
    return [
        Comparison("distance to vwᵀ", up_to_sign(trajectory.x_ND, torch.outer(v, left)), "<", 1e-9),
        Comparison("final mean cosine", trajectory.mean_cosine[-1].item(), "≈", closed),
        Comparison("that closed form", closed, "≈", (2**2 - 8) / (8 * 7)),
        Comparison("final mean |cosine|", trajectory.mean_abs_cosine[-1].item(), "≈", 1.0),
    ]


@case(
    lambda: Setup(
        two_group_attention(5, 3, seed=29),
        with_eigenvalues([-0.8 + 0.3j, -0.2, -0.1], seed=30),
        drawn(8, 4, seed=31),
        depth=400,
    ),
    name="only-feature-complex",
    group=GROUP,
    description="Real μ with a complex pair of λ: rank one, cosines ±1 that stay, a feature direction that turns.",
    paper=BEYOND_P1,
    predicted="collinear",
)
def _only_feature(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    last, before = trajectory.states_LND[-1, 0], trajectory.states_LND[-2, 0]
    cosines = trajectory.mean_cosine[-20:]
    return [
        Comparison("turn of the first token in one layer (1 − |cosine|)", line_turn(last, before), ">", 1e-3),
        Comparison("range of the mean cosine over 20 layers", (cosines.max() - cosines.min()).item(), "<", 1e-9),
        Comparison("final σ₂/σ₁", trajectory.second_singular[-1].item(), "<", 1e-9),
    ]


@case(
    lambda: Setup(cyclic_attention(7), with_eigenvalues([-0.8, -0.3, -0.1], seed=32), drawn(7, 3, seed=33), depth=1200),
    name="only-token-complex",
    group=GROUP,
    description="A complex pair of μ with real λ: rank one, |cosine| 1, and a pattern of signs that turns with depth.",
    paper=BEYOND_P1,
    predicted="collinear",
)
def _only_token(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    tail = trajectory.states_LND[-20:]
    signs = torch.sign(tail[:, :, 0] * tail[:, :1, 0])
    return [
        Comparison("sign patterns over 20 layers", float(len({tuple(row) for row in signs.tolist()})), ">", 1.5),
        Comparison(
            "largest 1 − mean |cosine| over 20 layers", 1 - trajectory.mean_abs_cosine[-20:].min().item(), "<", 1e-6
        ),
        Comparison("turn of the token pattern in one layer (1 − |cosine|)", _pattern_turn(tail), ">", 1e-3),
    ]


def _pattern_turn(states_LND: Tensor) -> float:
    return line_turn(states_LND[-1, :, 0], states_LND[-2, :, 0])


@case(
    lambda: Setup(
        cyclic_attention(7), with_eigenvalues([-0.5 + 0.6j, -0.3, -0.1], seed=34), drawn(7, 4, seed=35), depth=1200
    ),
    name="both-complex",
    group=GROUP,
    description="Complex μ with complex λ: two token and two feature directions stay, so rank two and no angle "
    "converges.",
    paper=BEYOND_P1,
    predicted="rank two",
)
def _both(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    return [
        Comparison("lowest σ₂/σ₁ over 100 layers", trajectory.second_singular[-100:].min().item(), ">", 0.05),
        Comparison("final σ₃/σ₁", trajectory.third_singular[-1].item(), "<", 1e-9),
        Comparison("highest mean |cosine| over 100 layers", trajectory.mean_abs_cosine[-100:].max().item(), "<", 0.95),
    ]


@case(
    _mean,
    name="low-pass",
    group=GROUP,
    description="Where the mean dominates, ‖HFC‖/‖LFC‖ goes to zero: repeated, the layer is a low-pass filter.",
    paper=f"{P1}; definition of {LOW_PASS}",
    predicted="‖HFC‖/‖LFC‖ → 0",
)
def _low_pass(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    return [Comparison("final HFC/LFC", trajectory.hfc_lfc[-1].item(), "<", 1e-9)]


@case(
    _lowest,
    name="not-low-pass",
    group=GROUP,
    description="Where another real mode v dominates, ‖HFC‖/‖LFC‖ goes to ‖(I − Π)v‖/‖Πv‖ and not to zero.",
    paper=f"{P1}; definition of {LOW_PASS}",
    predicted="‖HFC‖/‖LFC‖ → ‖(I − Π)v‖/‖Πv‖ > 0",
)
def _not_low_pass(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    v, _ = real_vectors(setup.map_NN, float(eigenvalues(setup.map_NN).real.min()))
    v_N1 = v.unsqueeze(1)
    closed = (off_mean(v_N1).norm() / (v.mean().abs() * len(v) ** 0.5)).item()
    predicted = predict(setup.map_NN, setup.h_DD).hfc_lfc
    return [
        Comparison("final HFC/LFC", trajectory.hfc_lfc[-1].item(), "≈", closed, tolerance=1e-6 * closed),
        Comparison("by predict", float("nan") if predicted is None else predicted, "≈", closed, 1e-9 * closed),
        Comparison("closed form", closed, ">", 1.0),
    ]
