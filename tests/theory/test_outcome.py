"""Each notion on tokens made by hand, and the chain of implications at every tolerance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.theory import LIMITS, Trajectory, iterate, outcome
from unsmooth.theory.maps import drawn


def still(x_ND: Tensor) -> Trajectory:
    """A trajectory that is its input."""
    return iterate(x_ND, torch.eye(len(x_ND)), torch.zeros(x_ND.shape[1], x_ND.shape[1]), depth=0)


DIRECTION = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
BY_HAND = {
    "input convergence": DIRECTION.expand(5, 4),
    "angle convergence": torch.outer(torch.tensor([1.0, 2.0, 0.1, 5.0, 0.7]).double(), DIRECTION),
    "collinear": torch.outer(torch.tensor([1.0, -2.0, 0.1, 5.0, -0.7]).double(), DIRECTION),
    "rank one": torch.outer(torch.tensor([1.0, -2.0, 0.0, 5.0, -0.7]).double(), DIRECTION),
    "rank two": drawn(5, 2, seed=0) @ drawn(2, 4, seed=1),
    "no collapse": drawn(5, 4, seed=2),
}


@pytest.mark.parametrize("limit", BY_HAND)
def test_by_hand(limit: str) -> None:
    assert outcome(still(BY_HAND[limit])).limit == limit


def test_by_hand_covers_what_can_be_reached() -> None:
    assert set(BY_HAND) == set(LIMITS) - {"vanishing"}


def test_flags_are_cumulative() -> None:
    found = outcome(still(BY_HAND["collinear"]))
    assert (found.input_convergence, found.angle_convergence) == (False, False)
    assert (found.unsigned_angle_collapse, found.rank_collapse, found.rank_two) == (True, True, False)
    assert found.angle == pytest.approx(2.0)
    assert found.line_angle == pytest.approx(0.0, abs=1e-12)


def test_a_plane_is_no_collapse_where_there_is_nothing_but_a_plane() -> None:
    assert outcome(still(drawn(5, 2, seed=3))).limit == "no collapse"
    assert outcome(still(drawn(2, 5, seed=3))).limit == "no collapse"


def test_tolerance_decides() -> None:
    x = DIRECTION.expand(5, 4) + 1e-3 * drawn(5, 4, seed=4)
    assert outcome(still(x), tolerance=1e-2).limit == "input convergence"
    assert outcome(still(x), tolerance=1e-5).limit == "no collapse"


def test_tiny_tokens_keep_their_direction() -> None:
    x = torch.outer(torch.tensor([1.0, 1e-200, -1e-250], dtype=torch.float64), DIRECTION)
    assert outcome(still(x)).limit == "collinear"


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 9),
    d=st.integers(1, 6),
    tolerance=st.sampled_from([1e-6, 1e-3, 0.03, 0.1]),
    near=st.floats(0.05, 6.0),
    kind=st.sampled_from(["vector", "direction", "line"]),
)
def test_each_notion_implies_the_next(seed: int, n: int, d: int, tolerance: float, near: float, kind: str) -> None:
    lengths = {"vector": torch.ones(n), "direction": drawn(n, seed=seed).abs() + 0.1, "line": drawn(n, seed=seed)}[kind]
    x = torch.outer(lengths.double(), torch.nn.functional.normalize(drawn(d, seed=seed + 1), dim=0))
    # Noise of about the tolerance, so that both sides of every threshold are met.
    x = x + near * tolerance / d**0.5 * drawn(n, d, seed=seed + 2)
    found = outcome(still(x), tolerance=tolerance)
    assert found.angle_convergence >= found.input_convergence
    assert found.unsigned_angle_collapse >= found.angle_convergence
    assert found.rank_collapse >= found.unsigned_angle_collapse
    assert not (found.rank_two and found.rank_collapse)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 0.5, float("nan")])
def test_bad_tolerance(tolerance: float) -> None:
    with pytest.raises(UnsmoothError, match="tolerance in"):
        outcome(still(drawn(3, 3, seed=5)), tolerance=tolerance)
