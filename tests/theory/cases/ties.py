"""Eigenvalues that tie at exactly 1: a layer that preserves tokens instead of collapsing them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.theory.case import BEYOND_P1, Comparison, Setup, case
from tests.theory.cases._tools import off_mean
from unsmooth.theory.iterate import Trajectory
from unsmooth.theory.maps import drawn, random_attention, two_group_attention, uniform_attention, with_eigenvalues

GROUP = "Ties"
VALUES = (0.0, 0.0, 0.0, -0.5, -0.9)


@case(
    lambda: Setup(
        (two_group_attention(4, 4, seed=40) + torch.eye(8, dtype=torch.float64)) / 2.0,
        with_eigenvalues(VALUES, seed=41),
        drawn(8, 5, seed=42),
        depth=600,
        normalise=False,
    ),
    name="zero-feature-eigenvalues",
    group=GROUP,
    description="λ clipped to a closed [−1, 0] has exact zeros, which give the eigenvalue 1 for every μ. With all "
    "μ ≥ 0 and three zeros three directions of every token stay as they were: no rank collapse.",
    paper=BEYOND_P1,
    predicted="no collapse",
)
def _zero_features(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    # The projector onto left null vectors of H along its range: rows of X₀ pass it unchanged.
    values, right = torch.linalg.eig(setup.h_DD)
    kept = (values.abs() < 1e-9).to(right.dtype)
    projector = (right @ torch.diag(kept) @ torch.linalg.inv(right)).real
    wanted = setup.x0 @ projector
    return [
        Comparison("distance to X₀ projected", ((trajectory.x_ND - wanted).norm() / wanted.norm()).item(), "<", 1e-9),
        Comparison("final σ₃/σ₁", trajectory.third_singular[-1].item(), ">", 0.05),
    ]


@case(
    lambda: Setup(
        uniform_attention(8),
        with_eigenvalues([-0.2, -0.5, -0.7, -0.9], seed=43),
        drawn(8, 4, seed=44),
        depth=400,
        normalise=False,
    ),
    name="zero-token-eigenvalues",
    group=GROUP,
    description="Uniform attention has μ = 0 n − 1 times: with λ in [−1, 0) the mean goes and (I − Π)X₀ stays exactly.",
    paper=BEYOND_P1,
    predicted="no collapse",
)
def _zero_tokens(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    wanted = off_mean(setup.x0)
    return [
        Comparison("distance to (I − Π)X₀", ((trajectory.x_ND - wanted).norm() / wanted.norm()).item(), "<", 1e-9),
        Comparison("final t_sim", trajectory.token_similarity[-1].item(), "<", 1e-12),
    ]


@case(
    lambda: Setup(random_attention(6, seed=45), torch.zeros(4, 4, dtype=torch.float64), drawn(6, 4, seed=46), depth=50),
    name="no-weights",
    group=GROUP,
    description="H = 0: every eigenvalue is 1 and the layer is the identity.",
    paper=BEYOND_P1,
    predicted="no collapse",
)
def _no_weights(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    moved = (trajectory.states_LND - trajectory.states_LND[0]).abs().max().item()
    return [Comparison("largest movement", moved, "<", 1e-12)]
