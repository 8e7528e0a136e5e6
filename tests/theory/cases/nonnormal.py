"""Eigenvalues in the sharpening interval that smooth for many layers: H far from normal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tests.theory.case import BEYOND_P1, Comparison, Setup, case
from tests.theory.cases._tools import eigenvalues
from unsmooth.theory.iterate import Trajectory
from unsmooth.theory.maps import drawn, lazy_attention


def _skewed() -> Tensor:
    """Eigenvalues −1/d … −1 behind a strong feed from each direction to the next."""
    d = 6
    core = torch.diag(-torch.linspace(1.0 / d, 1.0, d, dtype=torch.float64))
    core = core + 2.0 * torch.diag(torch.ones(d - 1, dtype=torch.float64), 1)
    turn: Tensor = torch.linalg.qr(drawn(d, d, seed=110)).Q
    return turn.T @ core @ turn


@case(
    lambda: Setup(lazy_attention(12, stay=0.2), _skewed(), drawn(12, 6, seed=111), depth=600),
    name="non-normal-smooths",
    group="Weights far from normal",
    description="All eigenvalues of H are in [−1, 0), so in the long run the mean does not dominate; but the symmetric "
    "part of H has a large positive eigenvalue and t_sim rises for many layers before that.",
    paper=BEYOND_P1,
    predicted="t_sim rises over the first layers and falls in the end",
)
def _smooths(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    similarity, values = trajectory.token_similarity, eigenvalues(setup.h_DD)
    symmetric = np.linalg.eigvalsh((setup.h_DD + setup.h_DD.T).numpy() / 2.0)
    condition = float(np.linalg.cond(np.linalg.eig(setup.h_DD.numpy())[1]))
    return [
        Comparison("lowest eigenvalue of H", float(values.real.min()), "≈", -1.0, tolerance=1e-6),
        Comparison("highest eigenvalue of H", float(values.real.max()), "<", 0.0),
        Comparison("condition of its eigenvectors", condition, ">", 100.0),
        Comparison("highest eigenvalue of its symmetric part", float(symmetric.max()), ">", 1.0),
        Comparison("t_sim of the input", similarity[0].item(), "<", 0.3),
        Comparison("highest t_sim", similarity.max().item(), ">", 0.8),
        Comparison("layer at which it is reached", float(similarity.argmax()), ">", 3.5),
        Comparison("layers above the input's t_sim", float((similarity > similarity[0]).sum()), ">", 9.5),
        Comparison("final t_sim", similarity[-1].item(), "<", 0.05),
    ]
