"""How the metrics relate to one another, and the traps that each of them has to step around."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from tests.functional.cases import attention_maps, gaussian
from unsmooth import functional as uf
from unsmooth.errors import UnsmoothError
from unsmooth.functional.linear_cka import alignment, centred_products, thinned


def test_one_number_in_four_guises() -> None:
    x = gaussian(3, 12, 7).double() + 0.5
    t = uf.token_similarity(x)
    torch.testing.assert_close(uf.token_diversity(x), 1 - t)
    torch.testing.assert_close(uf.hfc_lfc(x), ((1 - t) / t).sqrt())
    torch.testing.assert_close(uf.rank_one_residual(x, norm="frobenius"), (1 - t).sqrt())
    torch.testing.assert_close(uf.dirichlet_energy(x, normalised=True), 1 - t)
    torch.testing.assert_close(uf.dirichlet_energy(x), (1 - t) * x.square().sum(dim=(1, 2)))


def test_similarity_of_unit_tokens_is_their_mean_cosine_with_self() -> None:
    x = torch.nn.functional.normalize(gaussian(3, 12, 7).double() + 0.5, dim=-1)
    torch.testing.assert_close(uf.token_similarity(x), uf.mean_cosine(x, with_self=True))


def test_escalation_is_the_gain_in_similarity() -> None:
    x, y = gaussian(3, 12, 7).double(), gaussian(3, 12, 7, seed=1).double() + 0.5
    before, after = uf.token_similarity(x), uf.token_similarity(y)
    torch.testing.assert_close(uf.escalation_rate(x, y), (after - before) / (1 - before))


def test_escalation_from_exact_collapse_is_zero() -> None:
    """The mean of equal numbers is rounded; dividing by that error would give −1e13."""
    x = (gaussian(1, 1, 7) + 0.1).expand(1, 11, 7)
    for start in (x, x.double() / 3):
        assert uf.escalation_rate(start, gaussian(1, 11, 7)).item() == 0.0


def test_linear_cka_is_the_alignment_of_centred_grams() -> None:
    x, y = gaussian(1, 9, 7).double(), gaussian(1, 9, 4, seed=1).double()
    centring = np.eye(9) - np.ones((9, 9)) / 9
    left, right = (centring @ (z[0] @ z[0].T).numpy() @ centring for z in (x, y))
    want = np.trace(left @ right) / math.sqrt(np.trace(left @ left) * np.trace(right @ right))
    assert uf.linear_cka(x, y).item() == pytest.approx(want, rel=1e-10)
    assert uf.linear_cka(x, x).item() == pytest.approx(1.0, rel=1e-12)


def test_rank_metrics_of_equal_singular_values_agree() -> None:
    x = torch.linalg.qr(gaussian(2, 9, 4).double())[0]
    for rank in (uf.effective_rank, uf.stable_rank, uf.numerical_rank):
        torch.testing.assert_close(rank(x), torch.full((2,), 4.0, dtype=torch.float64))
    assert uf.singular_skewness(x).tolist() == [0.0, 0.0]


def test_isoscore_ends() -> None:
    axis = torch.tensor([[[1.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [3.0, 0.0, 0.0]]])
    torch.testing.assert_close(uf.isoscore(axis), torch.zeros(1))
    torch.testing.assert_close(uf.isoscore(torch.cat([torch.eye(3), -torch.eye(3)]).unsqueeze(0)), torch.ones(1))
    assert uf.isoscore(gaussian(1, 4, 1)).tolist() == [1.0]


def test_high_over_low_is_infinite_without_a_mean() -> None:
    assert uf.hfc_lfc(torch.tensor([[[1.0, 2.0], [-1.0, -2.0]]])).item() == math.inf


@pytest.mark.parametrize("side", ["left", "right"])
def test_trap_padding_is_not_part_of_the_mean(side: str) -> None:
    """Trap 3: padding that counts as zero tokens makes alike tokens look different."""
    x = gaussian(1, 4, 6) + 3.0
    padding = torch.zeros(1, 4, 6)
    mask = torch.tensor([[True] * 4 + [False] * 4])
    padded, mask = (torch.cat([x, padding], 1), mask) if side == "right" else (torch.cat([padding, x], 1), ~mask)
    assert uf.token_similarity(padded, mask).item() == pytest.approx(uf.token_similarity(x).item(), rel=1e-6)
    assert uf.token_similarity(padded).item() < 0.6 * uf.token_similarity(x).item()


def test_trap_sink_follows_left_padding() -> None:
    """Trap 3: with left padding the first real key is not key 0."""
    mask = torch.tensor([[False, False, True, True, True]])
    attention = attention_maps(gaussian(1, 2, 5, 5), mask, causal=True)
    alone = attention[:, :, 2:, 2:]
    torch.testing.assert_close(uf.attention_sink(attention, mask), uf.attention_sink(alone))
    torch.testing.assert_close(uf.attention_entropy(attention, mask), uf.attention_entropy(alone))


def test_trap_diversity_keeps_its_digits_near_collapse() -> None:
    """Trap 17: 1 − t_sim has none left where the direct form has all."""
    x = gaussian(1, 1, 64) + 1e-4 * gaussian(1, 50, 64, seed=1)
    exact = uf.token_diversity(x.double()).item()
    assert uf.token_diversity(x).item() == pytest.approx(exact, rel=1e-3)
    assert abs(float(1 - uf.token_similarity(x)) - exact) > 1e-2 * exact


def test_trap_bfloat16_input_is_summed_in_float32() -> None:
    """Trap 17: a bfloat16 sum of 0.9s stops growing at 256."""
    x = torch.full((1, 2048, 4), 0.9, dtype=torch.bfloat16)
    x[:, ::2] *= -0.5
    exact = uf.token_similarity(x.double()).item()
    assert uf.token_similarity(x).item() == pytest.approx(exact, rel=1e-5)
    naive = torch.zeros(4, dtype=torch.bfloat16)
    for token in x[0]:
        naive = naive + token
    assert abs(naive[0].item() / x.double()[0, :, 0].sum().item() - 1) > 0.1


def test_trap_bfloat16_noise_is_not_rank() -> None:
    """Rounding a rank-3 matrix to bfloat16 makes it full rank on paper."""
    x = (gaussian(1, 150, 3) @ gaussian(1, 3, 40, seed=1)).bfloat16()
    assert uf.numerical_rank(x).item() == 3
    assert uf.numerical_rank(x.float()).item() == 40


def test_trap_zero_tokens_count_as_cosine_zero() -> None:
    """Trap 18: 0/0 is neither NaN nor left out: two alike tokens and two zero tokens make one pair in six."""
    x = torch.tensor([[[1.0, 2.0], [2.0, 4.0], [0.0, 0.0], [0.0, 0.0]]])
    assert uf.mean_cosine(x).item() == pytest.approx(1 / 6)
    assert uf.mean_cosine(x, absolute=True).item() == pytest.approx(1 / 6)
    assert uf.Tokens(x).nonzero_B.tolist() == [2.0]


def test_massive_token_rules_similarity_and_not_cosine() -> None:
    """Trap 4: norm-weighted metrics follow the longest token, cosine does not."""
    x = torch.nn.functional.normalize(gaussian(1, 32, 64) + 0.5, dim=-1)
    massive = x.clone()
    massive[:, 0] *= 1000.0
    assert uf.token_similarity(massive).item() < 0.5 * uf.token_similarity(x).item()
    torch.testing.assert_close(uf.mean_cosine(massive), uf.mean_cosine(x))


def test_negative_attention_has_no_entropy() -> None:
    """Differential attention has negative weights, which are no distribution: NaN and not a plausible number."""
    assert uf.attention_entropy(torch.tensor([[[[1.2, -0.2], [0.5, 0.5]]]])).isnan().item()


def test_two_ways_to_linear_cka_agree() -> None:
    """A scan keeps the centred products of a layer to compare it with every other."""
    x, y = gaussian(3, 12, 7), gaussian(3, 12, 20, seed=1) + 3.0
    mask = torch.arange(12) < torch.tensor([[12], [5], [2]])
    kept = [centred_products(uf.Tokens(torch.where(mask.unsqueeze(-1), z, torch.nan), mask)) for z in (x, y)]
    torch.testing.assert_close(alignment(*kept).float(), uf.linear_cka(x, y, mask), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alignment(kept[0], kept[0]), torch.ones(3, dtype=torch.float64))


def test_long_sequences_are_thinned_alike_wherever_their_padding_is() -> None:
    x = gaussian(1, 1000, 4)
    assert thinned(uf.Tokens(x[:, :256]), 256).values_BND.shape == (1, 256, 4)
    plain = thinned(uf.Tokens(x), 256)
    left = torch.cat([torch.full((1, 500, 4), torch.nan), x], dim=1)
    padded = thinned(uf.Tokens(left, torch.arange(1500).unsqueeze(0) >= 500), 256)
    assert torch.equal(plain.values_BND, padded.values_BND)
    assert len(plain.values_BND[0].unique(dim=0)) == 256
    short = torch.arange(1000).unsqueeze(0) < 100
    kept = thinned(uf.Tokens(x, short), 256)
    assert kept.count_B.tolist() == [100]
    assert torch.equal(kept.values_BND[0, :100], x[0, :100])


def _composite(x: np.ndarray) -> float:
    return math.sqrt(np.abs(x).sum(axis=0).max() * np.abs(x).sum(axis=1).max())


def _least_composite(x: np.ndarray) -> float:
    """Least norm over centres: √(ab) is the least of (ta + b/t)/2 over t, each of which is a linear programme."""
    (n, d), best = x.shape, math.inf
    each = np.eye(n * d)
    # Unknown: the centre (d), |x − centre| (n·d), the largest column sum a and row sum b.
    below = np.hstack([np.tile(np.eye(d), (n, 1)), -each, np.zeros((n * d, 2))])
    above = np.hstack([-np.tile(np.eye(d), (n, 1)), -each, np.zeros((n * d, 2))])
    columns = np.hstack([np.zeros((d, d)), np.tile(np.eye(d), (1, n)), -np.ones((d, 1)), np.zeros((d, 1))])
    rows = np.hstack([np.zeros((n, d)), np.repeat(np.eye(n), d, axis=1), np.zeros((n, 1)), -np.ones((n, 1))])
    limits = np.concatenate([x.ravel(), -x.ravel(), np.zeros(d + n)])
    for t in np.exp(np.linspace(-3, 3, 61)):
        costs = np.concatenate([np.zeros(d + n * d), [t, 1 / t]])
        bounds = [(None, None)] * d + [(0, None)] * (n * d + 2)
        found = scipy.optimize.linprog(costs, np.vstack([below, above, columns, rows]), limits, bounds=bounds)
        best = min(best, _composite(x - found.x[:d]))
    return best


@pytest.mark.parametrize("shape", [(3, 2), (9, 4), (4, 8), (12, 6)])
@pytest.mark.parametrize("kind", ["plain", "massive token", "skewed", "near collapse, tiny"])
def test_the_argmin_of_the_composite_norm_against_linear_programmes(shape: tuple[int, int], kind: str) -> None:
    x = gaussian(1, *shape).double()
    if kind == "massive token":
        x[:, 0] *= 20.0
    elif kind == "skewed":
        x = x**3 + 0.5
    factor = 1e-30 if "tiny" in kind else 1.0
    want = _least_composite(x[0].numpy())
    if "collapse" in kind:
        x = 1.0 + 1e-6 * x
        want *= 1e-6
    want /= _composite(x[0].numpy())
    got = uf.rank_one_residual(x * factor, centre="argmin").item()
    assert want * 0.999 <= got <= want * 1.002
    assert got <= uf.rank_one_residual(x * factor).item()


def test_the_argmin_does_not_see_padding_and_is_zero_for_equal_tokens() -> None:
    x, mask = gaussian(2, 9, 5), torch.arange(9) < torch.tensor([[9], [6]])
    padded = uf.rank_one_residual(x.masked_fill(~mask.unsqueeze(-1), torch.nan), mask, centre="argmin")
    alone = torch.cat([uf.rank_one_residual(x[:1], centre="argmin"), uf.rank_one_residual(x[1:, :6], centre="argmin")])
    torch.testing.assert_close(padded, alone)
    assert uf.rank_one_residual(x[:, :1].expand(2, 9, 5), centre="argmin").tolist() == [0.0, 0.0]
    assert uf.rank_one_residual(torch.full((1, 3, 2), torch.nan), centre="argmin").isnan().item()
    with pytest.raises(UnsmoothError, match="centre"):
        uf.rank_one_residual(x, centre="median")  # type: ignore[arg-type]


def test_a_reconstruction_is_called_one_where_its_numbers_are() -> None:
    assert "reconstruction" in uf.parse_metric("escalation_rate(squared=False)").definition
