"""Causal attention: eigenvalues on the diagonal, and the first token as the place of collapse."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.theory.case import BEYOND_P1, Comparison, Setup, case
from tests.theory.cases._tools import eigenvalues, layer_matrix
from unsmooth.theory.iterate import Trajectory, iterate
from unsmooth.theory.maps import causal_attention, drawn, with_eigenvalues
from unsmooth.theory.modes import eigenvalue_distance

GROUP = "Causal attention"


@case(
    lambda: Setup(
        causal_attention(8, seed=80), with_eigenvalues([0.8, 0.3, -0.4], seed=81), drawn(8, 3, seed=82), depth=400
    ),
    name="causal-first-token",
    group=GROUP,
    description="The left Perron vector of a causal map is the first unit vector: where the mean dominates, every "
    "token goes to the first token's trajectory, whatever the others were.",
    paper=BEYOND_P1,
    predicted="input convergence",
)
def _first_token(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    others = drawn(8, 3, seed=83)
    others[0] = setup.x0[0]
    alone_D = setup.x0[0]
    for _ in range(setup.depth):
        alone_D = alone_D + alone_D @ setup.h_DD
        alone_D = alone_D / alone_D.norm()
    end = trajectory.x_ND
    moved = (iterate(others, setup.map_NN, setup.h_DD, depth=setup.depth).x_ND - end).abs().max().item()
    miss = (end - alone_D / len(end) ** 0.5).abs().max().item()
    return [
        Comparison("change of the limit when tokens 2..n are replaced", moved, "<", 1e-9),
        Comparison("distance of all tokens to the first one's own trajectory", miss, "<", 1e-9),
    ]


@case(
    lambda: Setup(
        causal_attention(8, seed=84), with_eigenvalues([-1.0, -0.6, -0.2], seed=85), drawn(8, 3, seed=86), depth=2000
    ),
    name="causal-nothing-grows",
    group=GROUP,
    description="The eigenvalues of a causal map are its diagonal, all in (0, 1]: with λ in [−1, 0) every 1 + μλ is in "
    "[0, 1) and the stream shrinks in the end. Singular values tell of the growth before that.",
    paper=BEYOND_P1,
    predicted="every eigenvalue of the layer is below 1",
)
def _nothing_grows(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    diagonal = setup.map_NN.diagonal().to(torch.complex128).numpy()
    # A triangular matrix has its eigenvalues on the diagonal; a general solver must find the same ones.
    layer = layer_matrix(setup.map_NN, setup.h_DD)
    products = (1.0 + diagonal[:, None] * eigenvalues(setup.h_DD)[None, :]).ravel()
    return [
        Comparison(
            "distance of the spectrum to 1 + A_ii λ", eigenvalue_distance(eigenvalues(layer), products), "<", 1e-4
        ),
        Comparison("largest modulus", float(abs(eigenvalues(layer)).max()), "<", 1.0),
        Comparison(
            "final log ‖X‖ against the input's", (trajectory.log_norm[-1] - trajectory.log_norm[0]).item(), "<", 0
        ),
        Comparison("largest singular value of a layer", torch.linalg.matrix_norm(layer, 2).item(), ">", 1.0),
    ]
