"""Several heads: exact for the token mean through ΣH_h, and surprising for the rest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tests.theory.case import BEYOND_P1, Comparison, Setup, case
from tests.theory.cases._tools import eigenvalues, layer_matrix
from unsmooth.theory.iterate import Trajectory
from unsmooth.theory.maps import drawn, random_attention
from unsmooth.theory.modes import eigenvalue_distance, modes

GROUP = "Several heads"


def _three_heads() -> Setup:
    maps = torch.stack([random_attention(5, seed=50 + head) for head in range(3)])
    return Setup(maps, 0.4 * drawn(3, 4, 4, seed=53), drawn(5, 4, seed=54), depth=1, normalise=False)


@case(
    _three_heads,
    name="heads-split",
    group=GROUP,
    description="Equal tokens stay equal under Σ A_h X H_h, so the spectrum is that of I + ΣH_h together with that of "
    "X̃ + Σ(I − Π)A_h X̃ H_h on the other token directions.",
    paper=BEYOND_P1,
    predicted="the eigenvalues of the layer are those of the two parts",
)
def _split(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    found = eigenvalues(layer_matrix(setup.map_NN, setup.h_DD))
    parts = modes(setup.map_NN, setup.h_DD)
    summed = 1.0 + eigenvalues(setup.h_DD.sum(dim=0))
    return [
        Comparison(
            "distance to both parts", eigenvalue_distance(found, np.concatenate([parts.mean, parts.rest])), "<", 1e-10
        ),
        Comparison("distance of the mean part to 1 + eig(ΣH_h)", eigenvalue_distance(parts.mean, summed), "<", 1e-10),
    ]


def _draw(seed: int) -> tuple[Tensor, Tensor]:
    """Two heads with positive eigenvalues and eigenvectors of their own."""
    bases = drawn(2, 3, 3, seed=1000 + seed)
    values = drawn(2, 3, seed=3000 + seed).abs() * 0.3 + 0.05
    maps = [random_attention(5, seed=5000 + 2 * seed + head, logit_std=3.0) for head in range(2)]
    return torch.stack(maps), torch.linalg.solve(bases, values.unsqueeze(-1) * bases)


def _positive_heads() -> Setup:
    """The first of a fixed row of draws in which the rest outgrows the mean by a clear margin."""
    found = (modes(*_draw(seed)) for seed in itertools.count())
    seed = next(seed for seed, one in enumerate(found) if one.rest_modulus > one.mean_modulus + 0.1)
    return Setup(*_draw(seed), drawn(5, 3, seed=55), depth=600)


@case(
    _positive_heads,
    name="positive-heads-sharpen",
    group=GROUP,
    description="Every head has positive eigenvalues, so alone each lets the mean dominate; together they do not.",
    paper=BEYOND_P1,
    predicted="positive spectra in every head, and yet the mean does not dominate",
)
def _positive(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    values = np.concatenate([eigenvalues(one) for one in setup.h_DD])
    found = modes(setup.map_NN, setup.h_DD)
    return [
        Comparison("lowest eigenvalue over heads", float(values.real.min()), ">", 0.0),
        Comparison("largest imaginary part", float(np.abs(values.imag).max()), "<", 1e-9),
        Comparison("growth of the rest", found.rest_modulus, ">", found.mean_modulus),
        Comparison("final t_sim", trajectory.token_similarity[-1].item(), "<", 0.9),
    ]


def _decoupled() -> Setup:
    maps = torch.stack([random_attention(5, seed=60 + head) for head in range(2)])
    basis, values = drawn(6, 6, seed=62), torch.tensor([-0.9, -0.5, -0.1, 0.2, 0.4, 0.8], dtype=torch.float64)
    output = torch.diag(values) @ torch.linalg.inv(basis)
    weights = torch.stack([basis[:, :3] @ output[:3], basis[:, 3:] @ output[3:]])
    return Setup(maps, weights, drawn(5, 6, seed=63), depth=1, normalise=False)


@case(
    _decoupled,
    name="heads-decoupled",
    group=GROUP,
    description="With W_V = V and W_O = ΛV⁻¹, cut into heads, the heads decouple: the spectrum is the union over heads "
    "of 1 + μλ with μ of that head's map and λ of its slots.",
    paper=BEYOND_P1,
    predicted="the eigenvalues of the layer are the union of the heads'",
)
def _union(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    slots = ([-0.9, -0.5, -0.1], [0.2, 0.4, 0.8])
    pieces = [1.0 + np.outer(eigenvalues(one), values).ravel() for one, values in zip(setup.map_NN, slots, strict=True)]
    found = eigenvalues(layer_matrix(setup.map_NN, setup.h_DD))
    return [Comparison("distance between the two sets", eigenvalue_distance(found, np.concatenate(pieces)), "<", 1e-10)]
