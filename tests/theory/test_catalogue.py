"""Every case of the catalogue, by name, and that a wrong one would not pass."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.theory.case import Comparison, Setup
from tests.theory.cases import CASES
from unsmooth.errors import UnsmoothError
from unsmooth.theory import LIMITS
from unsmooth.theory.maps import drawn, random_attention


@pytest.mark.parametrize("name", sorted(CASES))
def test_reproduced(name: str) -> None:
    result = CASES[name].run()
    assert result.name == name
    assert result.reached == result.predicted
    assert result.by_eigenvalues in (None, result.predicted)
    assert not [str(one) for one in result.comparisons if not one.holds]
    assert result.holds
    assert result.numbers
    assert all(math.isfinite(value) for value in result.numbers.values())
    assert len(result.numbers) == len(result.comparisons)  # no two numbers under one name


def test_every_entry_says_what_and_whose() -> None:
    for name, one in CASES.items():
        assert one.name == name
        assert one.description.endswith((".", "λ", "½I"))
        assert "arXiv" in one.paper
        assert one.group


def test_limits_that_the_catalogue_reaches() -> None:
    predicted = {one.predicted for one in CASES.values()} & set(LIMITS)
    assert predicted == {"input convergence", "collinear", "rank two", "no collapse"}


def test_a_wrong_prediction_does_not_hold() -> None:
    for name in ("mean-dominates", "lowest-mode", "both-complex", "zero-token-eigenvalues"):
        right = CASES[name]
        wrong = "rank one" if right.predicted != "rank one" else "no collapse"
        result = replace(right, predicted=wrong).run()
        assert not result.holds
        assert result.reached == right.predicted


def test_eigenvalues_must_agree_with_what_was_reached() -> None:
    one = CASES["lowest-mode"]
    shallow = replace(
        one, predicted="no collapse", build=lambda: replace(one.build(), depth=1), check=lambda setup, trajectory: []
    )
    result = shallow.run()
    assert (result.reached, result.by_eigenvalues) == ("no collapse", "collinear")
    assert not result.holds


def test_a_failing_comparison_is_what_was_reached() -> None:
    def fails(setup: Setup, trajectory: object) -> list[Comparison]:
        return [Comparison("two", 2.0, "<", 1.0), Comparison("one", 1.0, "≈", 1.0)]

    result = replace(CASES["spectrum"], check=fails).run()
    assert not result.holds
    assert result.reached == "not so: two 2 < 1"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mean-dominates", {"h": -0.9 * torch.eye(4, dtype=torch.float64)}),
        ("causal-first-token", {"attention": random_attention(8, seed=0)}),
        ("de-escalation", {"attention": random_attention(6, seed=0)}),
        ("post-norm-equal-scale", {"x0": drawn(6, 5, seed=0)}),
        ("zero-feature-eigenvalues", {"h": -0.3 * torch.eye(5, dtype=torch.float64)}),
        ("heads-decoupled", {"h": drawn(2, 6, 6, seed=0)}),
        ("varying-causal-smooths", {"h": -0.5 * torch.eye(32, dtype=torch.float64)}),
        ("non-normal-smooths", {"h": -0.5 * torch.eye(6, dtype=torch.float64)}),
    ],
)
def test_the_wrong_layer_does_not_hold(name: str, change: dict[str, torch.Tensor]) -> None:
    one = CASES[name]
    assert not replace(one, build=lambda: replace(one.build(), **change)).run().holds


def test_nan_never_holds() -> None:
    assert not any(Comparison("x", math.nan, relation, 0.0).holds for relation in ("≈", "<", ">"))


def test_unknown_case_gets_a_suggestion() -> None:
    with pytest.raises(UnsmoothError, match="Did you mean 'lowest-mode'"):
        CASES["lowest-mod"]


def test_setup_without_a_fixed_map_says_so() -> None:
    with pytest.raises(UnsmoothError, match="one tensor for all layers"):
        _ = CASES["varying-causal-smooths"].build().map_NN
