"""The layer's eigenvalues are 1 + μλ, and where λ must lie for the token mean to dominate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tests.theory.case import BEYOND_P1, Comparison, Setup, case
from tests.theory.cases._tools import eigenvalues, layer_matrix, real_vectors
from unsmooth.theory.iterate import Trajectory, iterate
from unsmooth.theory.maps import cyclic_attention, drawn, random_attention, two_group_attention, with_eigenvalues
from unsmooth.theory.modes import eigenvalue_distance

GROUP = "Eigenvalues of a layer"


def _random() -> Setup:
    return Setup(random_attention(5, seed=1), drawn(4, 4, seed=2), drawn(5, 4, seed=3), depth=1, normalise=False)


@case(
    _random,
    name="spectrum",
    group=GROUP,
    description="X + AXH as a linear map on matrices has the eigenvalues 1 + μλ, over all pairs of μ of A and λ of H.",
    predicted="the eigenvalues of the layer are 1 + μλ",
)
def _spectrum(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    products = 1.0 + np.outer(eigenvalues(setup.map_NN), eigenvalues(setup.h_DD)).ravel()
    found = eigenvalues(layer_matrix(setup.map_NN, setup.h_DD))
    return [Comparison("distance between the two sets", eigenvalue_distance(found, products), "<", 1e-10)]


def _real_pair() -> Setup:
    h = with_eigenvalues([-0.7, 0.4, 0.2], seed=5, skew=1.0)
    return Setup(two_group_attention(4, 3, seed=4), h, drawn(7, 3, seed=6), depth=1, normalise=False)


@case(
    _real_pair,
    name="left-eigenvectors",
    group=GROUP,
    description="Its eigen-matrices are vwᵀ with v a right eigenvector of A and w a left one of H, not a right one.",
    paper=BEYOND_P1,
    predicted="vwᵀ is mapped to (1 + μλ)vwᵀ for left w only",
)
def _left_eigenvectors(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    lowest = float(eigenvalues(setup.map_NN).real.min())
    v, _ = real_vectors(setup.map_NN, lowest)
    right, left = real_vectors(setup.h_DD, -0.7)

    def miss(w: Tensor) -> float:
        mode = torch.outer(v, w)
        image = iterate(mode, setup.map_NN, setup.h_DD, depth=1, normalise=False).x_ND
        return float((image - (1.0 - 0.7 * lowest) * mode).norm() / mode.norm())

    return [Comparison("miss of left w", miss(left), "<", 1e-12), Comparison("miss of right w", miss(right), ">", 0.05)]


def _on_circle(attention: Tensor, factor: float, angle: float) -> Tensor:
    """H with eigenvalues at `factor` times the radius of the disc with centre −1/(1 + m) and radius 1/(1 + m)."""
    radius = 1.0 / (1.0 + float(eigenvalues(attention).real.min()))
    value = -radius + factor * radius * np.exp(1j * angle)
    return torch.tensor([[value.real, value.imag], [-value.imag, value.real]], dtype=torch.float64)


def _disc(factor: float) -> Setup:
    attention = two_group_attention(5, 3, seed=7, contrast=1.0)
    return Setup(attention, _on_circle(attention, factor, 0.5), drawn(8, 2, seed=8), depth=600)


ANGLES = torch.linspace(0.1, math.pi, 7, dtype=torch.float64).tolist()


def _final_similarities(setup: Setup, factor: float) -> list[float]:
    weights = [_on_circle(setup.map_NN, factor, angle) for angle in ANGLES]
    return [iterate(setup.x0, setup.map_NN, h, depth=setup.depth).token_similarity[-1].item() for h in weights]


@case(
    lambda: _disc(1.05),
    name="disc-outside",
    group=GROUP,
    description="A with real spectrum and lowest eigenvalue m: λ outside the disc with centre −1/(1 + m) and radius "
    "1/(1 + m) lets the mean dominate. Here 5 % outside, all around.",
    paper=BEYOND_P1,
    predicted="input convergence",
)
def _outside(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    return [
        Comparison("largest final 1 − t_sim around the disc", 1.0 - min(_final_similarities(setup, 1.05)), "<", 1e-6)
    ]


@case(
    lambda: _disc(0.95),
    name="disc-inside",
    group=GROUP,
    description="The same 5 % inside the disc: the lowest mode dominates, all tokens lie on a line with mixed signs.",
    paper=BEYOND_P1,
    predicted="collinear",
)
def _inside(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    return [Comparison("highest final t_sim around the disc", max(_final_similarities(setup, 0.95)), "<", 0.5)]


def _margins(signed_values: Sequence[float]) -> list[float]:
    """|1 + λ| − max |1 + μλ| over random maps, sharp and flat, and near-cyclic ones."""
    maps = [random_attention(8, seed=seed, logit_std=std) for seed in range(20) for std in (0.3, 1.0, 3.0)]
    maps += [cyclic_attention(n, leak=0.02) for n in (3, 4, 7)]
    margins = []
    for attention in maps:
        values = eigenvalues(attention)
        others = np.delete(values, np.abs(values - 1.0).argmin())
        margins += [abs(1 + value) - float(np.abs(1 + others * value).max()) for value in signed_values]
    return margins


@case(
    lambda: Setup(
        random_attention(8, seed=10, logit_std=2.0),
        with_eigenvalues([-1.0, -0.6, -0.3, -0.05], seed=11),
        drawn(8, 4, seed=12),
        depth=4000,
    ),
    name="sharpening-interval",
    group=GROUP,
    description="λ in [−1, 0) never lets the mean dominate, whatever the attention: |1 − tμ| ≥ 1 − t|μ| > 1 − t.",
    predicted="another mode outgrows the mean for every attention map",
)
def _sharpening(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    margins = _margins([-1.0, -0.7, -0.3, -0.05])
    return [
        Comparison("largest |1 + λ| − max|1 + μλ| over 63 maps", max(margins), "<", 0.0),
        Comparison("final t_sim", trajectory.token_similarity[-1].item(), "<", 0.5),
    ]


@case(
    lambda: Setup(
        random_attention(8, seed=13, logit_std=2.0),
        with_eigenvalues([1.0, 0.6, 0.3, 0.05], seed=14),
        drawn(8, 4, seed=15),
        depth=400,
    ),
    name="smoothing-interval",
    group=GROUP,
    description="λ > 0 always lets the mean dominate: |1 + tμ| < 1 + t.",
    paper=BEYOND_P1,
    predicted="input convergence",
)
def _smoothing(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    margins = _margins([0.05, 0.3, 1.0, 5.0])
    return [Comparison("smallest |1 + λ| − max|1 + μλ| over 63 maps", min(margins), ">", 0.0)]


@case(
    lambda: Setup(
        cyclic_attention(9), with_eigenvalues([0.235 + 0.187j, -0.1, -0.2], seed=16), drawn(9, 4, seed=17), depth=1500
    ),
    name="near-cyclic",
    group=GROUP,
    description="The disc is a test for real μ only: under near-cyclic attention λ = 0.235 ± 0.187i, with positive "
    "real part, does not let the mean dominate.",
    paper=BEYOND_P1,
    predicted="rank two",
)
def _near_cyclic(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    mean = abs(1 + 0.235 + 0.187j)
    rest = float(np.abs(1 + np.outer(eigenvalues(setup.map_NN), [0.235 + 0.187j])).max())
    return [
        Comparison("growth of the mean", mean, "<", rest),
        Comparison("final t_sim", trajectory.token_similarity[-1].item(), "<", 1e-6),
    ]
