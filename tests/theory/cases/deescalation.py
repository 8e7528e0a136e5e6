"""De-escalation, the removal of the token mean, is an idealised layer with uniform attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.theory.case import P1, P2, Comparison, Setup, case
from unsmooth.theory.iterate import Trajectory, iterate
from unsmooth.theory.maps import drawn, uniform_attention

STRENGTHS = (0.5, 1.0, 1.5, 2.0)


def _weights(tau: float) -> Tensor:
    return -tau * torch.eye(4, dtype=torch.float64)


@case(
    lambda: Setup(uniform_attention(6), _weights(0.5), drawn(6, 4, seed=100) + 1.0, depth=1, normalise=False),
    name="de-escalation",
    group="Removing the mean",
    description="(I − τΠ)X is one layer with uniform attention and H = −τI. It leaves t_sim at "
    "(1 − τ)²s/((1 − τ)²s + 1 − s): 0 for τ = 1, unchanged for τ = 2.",
    paper=f"{P2}; as a layer of {P1}",
    predicted="(I − τΠ)X = X + AXH with A = Π and H = −τI",
)
def _de_escalation(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
    before = trajectory.token_similarity[0].item()
    comparisons = []
    for tau in STRENGTHS:
        run = iterate(setup.x0, setup.map_NN, _weights(tau), depth=1, normalise=False)
        removed = setup.x0 - tau * setup.x0.mean(dim=0)
        kept = (1.0 - tau) ** 2 * before
        closed = kept / (kept + 1.0 - before)
        miss = (run.x_ND - removed).abs().max().item()
        comparisons += [
            Comparison(f"distance at τ = {tau}", miss, "<", 1e-12),
            Comparison(f"t_sim at τ = {tau}", run.token_similarity[-1].item(), "≈", closed, tolerance=1e-12),
        ]
    return comparisons
