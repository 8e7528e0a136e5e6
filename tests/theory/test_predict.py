"""Predictions against what iterating reaches, and against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from unsmooth.errors import UnsmoothError
from unsmooth.theory import (
    causal_attention,
    cyclic_attention,
    iterate,
    outcome,
    predict,
    random_attention,
    sign_cosine,
    two_group_attention,
)
from unsmooth.theory.maps import drawn, lazy_attention, uniform_attention, with_eigenvalues


def eye(d: int) -> Tensor:
    return torch.eye(d, dtype=torch.float64)


def draws() -> list[tuple[str, Tensor, Tensor]]:
    found = []
    for seed in range(40):
        maps = {
            "random": random_attention(7, seed=seed, logit_std=2.0),
            "cyclic": cyclic_attention(7, leak=0.1),
            "groups": two_group_attention(4, 3, seed=seed),
        }
        kind = list(maps)[seed % 3]
        found.append((f"{kind}-{seed}", maps[kind], drawn(4, 4, seed=500 + seed) * (0.2 + 0.05 * seed)))
    return found


@pytest.mark.parametrize(("attention", "h"), [one[1:] for one in draws()], ids=[one[0] for one in draws()])
def test_what_is_predicted_is_what_iterating_reaches(attention: Tensor, h: Tensor) -> None:
    found = predict(attention, h)
    assert found.gap > 1e-4  # else the test would need too many layers to mean anything
    run = iterate(drawn(7, 4, seed=900), attention, h, depth=min(20_000, 30 + math.ceil(30 / found.gap)))
    assert outcome(run).limit == found.limit
    growth = (run.log_norm[-1] - run.log_norm[len(run.log_norm) // 2]).item() / (run.depth - len(run.log_norm) // 2)
    assert growth == pytest.approx(math.log(found.modulus), abs=0.05)
    if found.mean_cosine is not None:
        assert run.mean_cosine[-1].item() == pytest.approx(found.mean_cosine, abs=1e-6)
    if found.hfc_lfc is not None:
        assert run.hfc_lfc[-1].item() == pytest.approx(found.hfc_lfc, rel=1e-4, abs=1e-6)


def test_draws_meet_every_kind_of_limit() -> None:
    assert {predict(*one[1:]).limit for one in draws()} >= {"input convergence", "collinear", "rank two"}


def test_moduli_and_margin() -> None:
    found = predict(lazy_attention(5, 0.5), torch.diag(torch.tensor([0.4, -0.2, -1.0])))
    assert found.mean_modulus == pytest.approx(1.4)
    assert found.rest_modulus == pytest.approx(1.2)
    assert found.margin == pytest.approx(math.log(1.4 / 1.2))
    assert found.gap == pytest.approx(math.log(1.4 / 1.2))
    assert (found.ties, found.rank) == (1, 1)
    assert found.eigenvalue == pytest.approx(1.4)
    assert (found.token_eigenvalue, found.feature_eigenvalue) == (pytest.approx(1.0), pytest.approx(0.4))
    assert found.mean_dominates
    assert found.low_pass
    assert found.hfc_lfc == 0.0


def test_modes_are_right_of_attention_and_left_of_h() -> None:
    attention, h = two_group_attention(5, 3, seed=1), with_eigenvalues([-0.8, -0.3, 0.01], seed=2, skew=1.0)
    found = predict(attention, h)
    assert found.token_mode is not None
    assert found.feature_mode is not None
    np.testing.assert_allclose(attention.numpy() @ found.token_mode, found.token_eigenvalue.real * found.token_mode)
    np.testing.assert_allclose(found.feature_mode @ h.numpy(), -0.8 * found.feature_mode, atol=1e-12)
    assert found.limit == "collinear"
    assert found.mean_cosine == pytest.approx(sign_cosine(5, 3))


@pytest.mark.parametrize(("positive", "negative"), [(5, 3), (4, 4), (1, 6), (7, 0)])
def test_sign_cosine_against_all_pairs(positive: int, negative: int) -> None:
    signs = [1.0] * positive + [-1.0] * negative
    pairs = [a * b for i, a in enumerate(signs) for j, b in enumerate(signs) if i != j]
    assert sign_cosine(positive, negative) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize(
    ("attention", "h", "limit", "rank"),
    [
        (uniform_attention(6), -0.5 * eye(4), "no collapse", 4),  # five tied μ = 0, four tied λ
        (random_attention(6, seed=1), torch.zeros(4, 4), "no collapse", 4),  # the identity
        (lazy_attention(6, 0.3), -0.5 * eye(1), "collinear", 1),  # one dimension is a line
        (lazy_attention(6, 0.3), torch.diag(torch.tensor([-0.5, -0.9, -0.8])), "collinear", 1),  # five tied μ, one λ
        (torch.eye(5), 0.5 * eye(3), "no collapse", 3),  # μ = 1 five times over: tokens never meet
        (torch.eye(5), torch.diag(torch.tensor([0.5, 0.1, 0.2])), "collinear", 1),
        (torch.eye(5), -eye(3), "vanishing", 0),
        (torch.block_diag(uniform_attention(3), uniform_attention(2)), 0.5 * eye(4), "rank two", 2),
    ],
)
def test_ties(attention: Tensor, h: Tensor, limit: str, rank: int) -> None:
    found = predict(attention, h)
    assert (found.limit, found.rank) == (limit, rank)
    if limit != "vanishing":
        assert outcome(iterate(drawn(len(attention), len(h), seed=3), attention, h, depth=300)).limit == limit


def test_a_mode_that_is_zero_on_some_tokens() -> None:
    # Causal: the mode of the lowest diagonal entry is zero on the tokens before it.
    attention = torch.tensor([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.3, 0.5, 0.2]], dtype=torch.float64)
    found = predict(attention, torch.diag(torch.tensor([-0.5, -0.7, -0.9], dtype=torch.float64)))
    assert found.limit == "rank one"
    assert found.mean_cosine is None
    assert found.token_eigenvalue == pytest.approx(0.2)


def test_causal_eigenvalues_are_the_diagonal() -> None:
    attention = causal_attention(6, seed=5)
    found = predict(attention, torch.diag(torch.tensor([0.7, 0.1])))
    second = attention.diagonal()[1:].max().item()
    assert found.rest_modulus == pytest.approx(1 + 0.7 * second, rel=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_defective_weights_say_what_still_holds(size: int) -> None:
    jordan = 0.5 * eye(size) + torch.diag(torch.ones(size - 1, dtype=torch.float64), 1)
    turn = torch.linalg.qr(drawn(size, size, seed=6)).Q
    for h in (jordan, turn.T @ jordan @ turn):
        with pytest.raises(UnsmoothError, match=r"diagonalisable h .*defective.*still 1 \+ μλ.*1\.5.*mean still"):
            predict(lazy_attention(4, 0.2), h)
    with pytest.raises(UnsmoothError, match="mean does not dominate"):
        predict(lazy_attention(4, 0.2), jordan - eye(size))


def test_defective_attention() -> None:
    attention = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    with pytest.raises(UnsmoothError, match="diagonalisable attention"):
        predict(attention, 0.5 * eye(2))


def test_several_heads_are_sent_to_modes() -> None:
    with pytest.raises(UnsmoothError, match=r"a single head but got 2 heads.*unsmooth\.theory\.modes"):
        predict(torch.eye(3).expand(2, 3, 3), torch.eye(2).expand(2, 2, 2))
