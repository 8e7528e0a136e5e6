"""Which notion of collapse a trajectory has reached: equal tokens, equal directions, equal lines, low rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.theory.iterate import Trajectory

Limit: TypeAlias = Literal[
    "input convergence", "angle convergence", "collinear", "rank one", "rank two", "no collapse", "vanishing"
]
LIMITS: Mapping[Limit, str] = {
    "input convergence": "all tokens become one vector, relative to ‖X‖",
    "angle convergence": "all tokens point the same way, with lengths of their own",
    "collinear": "all tokens lie on one line, some pointing the other way: |cosine| 1, signed cosine ±1",
    "rank one": "the token matrix is of rank one, some tokens vanishing beside the others",
    "rank two": "the tokens fill a plane and no line: no angle converges",
    "no collapse": "three directions or more survive, or as many as there can be",
    "vanishing": "every mode is mapped to zero",
}


@dataclass(frozen=True)
class Outcome:
    """What the last layer of a trajectory has reached.

    Each notion implies the next: input convergence ⇒ angle convergence ⇒ unsigned angle collapse ⇒ rank collapse.

    Attributes:
        input_convergence: All tokens are one vector: max ‖x_i − x̄‖ over the root mean square of the lengths.
        angle_convergence: All signed cosines are 1.
        unsigned_angle_collapse: All |cosines| are 1.
        rank_collapse: σ₂/σ₁ is 0.
        rank_two: σ₃/σ₁ is 0 and σ₂/σ₁ is not, where a third direction could be.
        limit: The strongest of them, one of `LIMITS`.
        spread: The number that decides input convergence.
        angle: Largest angle between two tokens, as a chord.
        line_angle: Largest angle between the lines of two tokens, as a chord.
    """

    input_convergence: bool
    angle_convergence: bool
    unsigned_angle_collapse: bool
    rank_collapse: bool
    rank_two: bool
    limit: Limit
    spread: float
    angle: float
    line_angle: float


def outcome(trajectory: Trajectory, *, tolerance: float = 1e-4) -> Outcome:
    """Read off the last layer which collapse has happened (the notions are those of P1, arXiv 2401.04301).

    Tokens within `tolerance` of their mean are within 3 tolerances of each other in angle, and tokens that close in
    angle leave σ₂/σ₁ below 4 tolerances: with these factors the chain of implications holds exactly.

    Args:
        trajectory: What `iterate` returned.
        tolerance: How near is reached; more than 0 and at most 0.1.

    Example:
        >>> from unsmooth.theory import iterate
        >>> x, uniform = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.full((2, 2), 0.5)
        >>> outcome(iterate(x, uniform, torch.eye(2), depth=50)).limit
        'input convergence'
        >>> outcome(iterate(x, uniform, -torch.eye(2), depth=50)).limit  # the mean goes, the rest stays: x, −x
        'collinear'
    """
    if not 0.0 < tolerance <= 0.1:
        raise expected("a tolerance in (0, 0.1]", str(tolerance), "tolerance=1e-4")
    x_ND = trajectory.x_ND
    spread = _spread(x_ND)
    angle, line_angle = _chords(x_ND)
    second, third = trajectory.second_singular[-1].item(), trajectory.third_singular[-1].item()
    notions = (
        spread <= tolerance,
        angle <= 3.0 * tolerance,
        line_angle <= 3.0 * tolerance,
        second <= 4.0 * tolerance,
        second > 4.0 * tolerance >= third and min(x_ND.shape) > 2,
    )
    names: tuple[Limit, ...] = ("input convergence", "angle convergence", "collinear", "rank one", "rank two")
    reached = [name for name, happens in zip(names, notions, strict=True) if happens]
    limit: Limit = reached[0] if reached else "no collapse"
    return Outcome(*notions, limit=limit, spread=spread, angle=angle, line_angle=line_angle)


def _spread(x_ND: Tensor) -> float:
    length = x_ND.square().sum(dim=1).mean().sqrt()
    return float((x_ND - x_ND.mean(dim=0)).norm(dim=1).max() / length)


def _chords(x_ND: Tensor) -> tuple[float, float]:
    """Largest ‖x̂_i − x̂_j‖, and the same up to sign; differences do not cancel as 1 − cosine would."""
    largest_N1 = x_ND.abs().amax(dim=1, keepdim=True)  # first, so that squares of tiny tokens do not underflow
    scaled_ND = x_ND / torch.where(largest_N1 == 0, 1.0, largest_N1)
    length_N1 = scaled_ND.norm(dim=1, keepdim=True)
    # A zero token has no direction: it stays zero and is at chord 1 from every other.
    unit_ND = scaled_ND / torch.where(length_N1 == 0, 1.0, length_N1)
    same_NN = torch.cdist(unit_ND, unit_ND, compute_mode="donot_use_mm_for_euclid_dist")
    opposite_NN = torch.cdist(unit_ND, -unit_ND, compute_mode="donot_use_mm_for_euclid_dist")
    return same_NN.max().item(), torch.minimum(same_NN, opposite_NN).max().item()
