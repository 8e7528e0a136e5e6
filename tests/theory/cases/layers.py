"""Attention that changes from layer to layer: the sign of H still decides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.theory.case import BEYOND_P1, Comparison, Setup, case
from unsmooth.theory.iterate import Trajectory
from unsmooth.theory.maps import causal_attention, drawn, random_attention

GROUP = "Attention that varies"
DEPTH, TOKENS, DIM = 24, 16, 32


def _varying(weight: float, causal: bool) -> Setup:
    draw = causal_attention if causal else random_attention
    h = weight * torch.eye(DIM, dtype=torch.float64)
    # A shared part, so that there is some similarity to lose as well as to gain.
    x0 = drawn(TOKENS, DIM, seed=70) + 0.5 * drawn(1, DIM, seed=71)
    return Setup(lambda layer: draw(TOKENS, seed=7000 + layer), h, x0, depth=DEPTH)


def _add(weight: float, causal: bool) -> None:
    rises = weight > 0

    @case(
        lambda: _varying(weight, causal),
        name=f"varying-{'causal' if causal else 'bidirectional'}-{'smooths' if rises else 'sharpens'}",
        group=GROUP,
        description=f"H = {'+' if rises else '−'}½I over {DEPTH} layers, each with a random "
        f"{'causal ' if causal else ''}map of its own.",
        paper=BEYOND_P1,
        predicted="t_sim rises towards 1" if rises else "t_sim falls towards 0",
    )
    def _direction(setup: Setup, trajectory: Trajectory) -> Sequence[Comparison]:
        first, last = trajectory.token_similarity[0].item(), trajectory.token_similarity[-1].item()
        end = Comparison("final t_sim", last, ">", 0.98) if rises else Comparison("final t_sim", last, "<", 0.05)
        return [Comparison("t_sim of the input", first, "<" if rises else ">", 0.5 if rises else 0.1), end]


for _causal in (False, True):
    for _weight in (0.5, -0.5):
        _add(_weight, _causal)
