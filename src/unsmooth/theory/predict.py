"""From the eigenvalues of a fixed A and H to the limit of many layers."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import structural_rank
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.theory._checks import check_heads, checked_attention, checked_weights
from unsmooth.theory.outcome import Limit


@dataclass(frozen=True)
class Prediction:
    """The expected limit of X ← X + A X H for tokens in general position.

    Attributes:
        limit: One of `LIMITS`.
        reason: The limit in a sentence.
        eigenvalue: The dominating 1 + μλ; of a complex pair the one with positive imaginary part.
        token_eigenvalue: Its μ, of A.
        feature_eigenvalue: Its λ, of H.
        modulus: |1 + μλ|, the growth per layer.
        mean_modulus: Largest |1 + λ|: modes in which all tokens are equal.
        rest_modulus: Largest |1 + μλ| over the other μ.
        margin: log(mean_modulus / rest_modulus): positive where the token mean dominates.
        gap: log of the modulus over the largest outside the dominating set: the rate per layer at which the limit is
            approached; infinite where nothing is left outside.
        ties: Pairs (μ, λ) of the same largest modulus; 1 for a real simple eigenvalue, 2 for a complex pair.
        rank: Rank of the limit.
        mean_cosine: Mean signed cosine of the limit; None where it turns with depth or depends on the tokens.
        hfc_lfc: ‖(I − Π)X‖/‖ΠX‖ of the limit; None likewise.
        token_mode: v (n,), right eigenvector of A, where one real v dominates.
        feature_mode: w (d,), left eigenvector of H, where one real w dominates: the limit is v wᵀ.
    """

    limit: Limit
    reason: str
    eigenvalue: complex
    token_eigenvalue: complex
    feature_eigenvalue: complex
    modulus: float
    mean_modulus: float
    rest_modulus: float
    margin: float
    gap: float
    ties: int
    rank: int
    mean_cosine: float | None
    hfc_lfc: float | None
    token_mode: NDArray[np.float64] | None
    feature_mode: NDArray[np.float64] | None

    @property
    def mean_dominates(self) -> bool:
        """Whether the modes in which all tokens are equal grow strictly fastest."""
        return self.limit == "input convergence"

    @property
    def low_pass(self) -> bool:
        """Whether ‖HFC‖/‖LFC‖ goes to zero with depth (Wang et al. 2022, arXiv 2203.05962)."""
        return self.mean_dominates


def sign_cosine(positive: int, negative: int) -> float:
    r"""Mean cosine of tokens on one line, `positive` of them pointing one way and `negative` the other.

    .. math:: \frac{(n_+ - n_-)^2 - n}{n(n - 1)}, \qquad n = n_+ + n_-

    >>> sign_cosine(4, 0), sign_cosine(2, 1)  # all alike; pairs +1, −1, −1
    (1.0, -0.3333333333333333)
    """
    n = positive + negative
    return ((positive - negative) ** 2 - n) / (n * (n - 1))


TIE = 1e-9
# Eigenvectors of a 2×2 Jordan block come out of floating point with a condition of at least 1e8.
DEFECTIVE = 1e7
Complexes = NDArray[np.complex128]


@dataclass(frozen=True)
class _Spectrum:
    """Eigenvalues with right eigenvectors as columns."""

    values: Complexes
    right: Complexes

    @property
    def condition(self) -> float:
        return float(np.linalg.cond(self.right))


def predict(attention: Tensor, h: Tensor) -> Prediction:
    r"""Predict the limit of X ← X + A X H from the eigenvalues of A and H.

    The layer's eigenvalues are 1 + μ_i λ_j, with eigen-matrices v_i w_jᵀ: v_i a right eigenvector of A, w_j a *left*
    one of H. Those of the largest modulus decide (P1, arXiv 2401.04301, with ties and complex values added):

    - only μ = 1: all tokens become one vector;
    - one real v: rank one, tokens on a line with the signs of v, mean cosine ((n₊ − n₋)² − n)/(n(n − 1));
    - a complex λ alone, or a complex μ alone: rank one, turning with depth;
    - both complex: rank two;
    - ties over many μ and many λ, such as λ = 0: what lies in them is preserved, no rank collapse.

    Args:
        attention: (n, n) with rows that sum to one.
        h: (d, d) = W_V W_O, tokens as rows.

    Example:
        >>> import torch
        >>> attention = torch.tensor([[0.75, 0.25], [0.25, 0.75]])  # eigenvalues 1 and 1/2
        >>> predict(attention, 0.5 * torch.eye(3)).limit
        'input convergence'
        >>> found = predict(attention, -0.5 * torch.eye(3))  # 1 − 1/2 against 1 − 1/4
        >>> found.limit, round(found.modulus, 3), found.mean_cosine
        ('collinear', 0.75, -1.0)
    """
    map_HNN, h_HDD = checked_attention(attention), checked_weights(h)
    check_heads(map_HNN, h_HDD)
    if len(map_HNN) > 1:
        raise expected("a single head", f"{len(map_HNN)} heads", "unsmooth.theory.modes: heads share no eigenvectors")
    tokens, features = _mean_first(_spectrum(map_HNN[0].numpy())), _spectrum(h_HDD[0].numpy())
    theta = 1.0 + np.outer(tokens.values, features.values)
    for name, one in (("attention", tokens), ("h", features)):
        if one.condition > DEFECTIVE:
            raise _not_diagonalisable(name, one.condition, np.abs(theta))
    return _decide(tokens, features, theta)


def _spectrum(matrix: NDArray[np.float64]) -> _Spectrum:
    # Symmetric matrices may have repeated eigenvalues, for which only eigh promises independent eigenvectors.
    symmetric = np.allclose(matrix, matrix.T, rtol=0.0, atol=1e-14 * np.abs(matrix).max())
    values, right = np.linalg.eigh(matrix) if symmetric else np.linalg.eig(matrix)
    return _Spectrum(values.astype(np.complex128), right.astype(np.complex128))


def _mean_first(spectrum: _Spectrum) -> _Spectrum:
    """Eigenvalue 1 to the front."""
    order = np.argsort(np.abs(spectrum.values - 1.0), kind="stable")
    return _Spectrum(spectrum.values[order], spectrum.right[:, order])


def _not_diagonalisable(name: str, condition: float, moduli: NDArray[np.float64]) -> ValueError:
    mean, rest = moduli[0].max(), moduli[1:].max()
    side = "the token mean still" if mean > rest * (1 + TIE) else "the token mean does not"
    return expected(
        f"diagonalisable {name}",
        f"eigenvectors of condition {condition:.1g}, which is defective to working precision (the spectrum is still "
        f"1 + μλ, with largest modulus {mean:.4g} for equal tokens and {rest:.4g} for the rest, so {side} "
        "dominate(s), at a rate slowed by powers of the depth; the form of the limit is not known)",
        f"iterate to see the limit, or {name} with a small perturbation",
    )


def _decide(tokens: _Spectrum, features: _Spectrum, theta: Complexes) -> Prediction:
    moduli = np.abs(theta)
    modulus, mean, rest = (float(part.max()) for part in (moduli, moduli[0], moduli[1:]))
    dominating = moduli >= modulus * (1.0 - TIE)
    others = moduli[~dominating]
    i, j = _representative(theta, dominating)
    rank = int(structural_rank(csr_array(dominating)))
    v, w = _single_modes(tokens, features, dominating)
    limit, reason = _limit(dominating, v, rank)
    if modulus < TIE:
        limit, reason, rank = "vanishing", "every eigenvalue 1 + μλ is zero", 0
    return Prediction(
        limit=limit,
        reason=reason,
        eigenvalue=complex(theta[i, j]),
        token_eigenvalue=complex(tokens.values[i]),
        feature_eigenvalue=complex(features.values[j]),
        modulus=modulus,
        mean_modulus=mean,
        rest_modulus=rest,
        margin=_log_ratio(mean, rest),
        gap=_log_ratio(modulus, float(others.max())) if others.size else inf,
        ties=int(dominating.sum()),
        rank=rank,
        mean_cosine=_cosine(limit, v),
        hfc_lfc=_hfc_lfc(v),
        token_mode=v,
        feature_mode=w,
    )


def _representative(theta: Complexes, dominating: NDArray[np.bool_]) -> tuple[int, int]:
    """The dominating pair that is shown: of a complex pair the one above the real axis."""
    pairs = np.argwhere(dominating)
    i, j = max(pairs.tolist(), key=lambda pair: round(float(theta[pair[0], pair[1]].imag), 12))
    return i, j


def _single_modes(
    tokens: _Spectrum, features: _Spectrum, dominating: NDArray[np.bool_]
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """The one real v and the one real w that dominate, where there is one."""
    rows, columns = np.flatnonzero(dominating.any(axis=1)), np.flatnonzero(dominating.any(axis=0))
    v = tokens.right[:, rows[0]].real if len(rows) == 1 and _is_real(tokens.values[rows[0]]) else None
    if v is not None and rows[0] == 0:
        v = np.ones_like(v)
    w = None
    if len(columns) == 1 and _is_real(features.values[columns[0]]):
        w = np.linalg.inv(features.right)[columns[0]].real
    return v, w


def _limit(dominating: NDArray[np.bool_], v: NDArray[np.float64] | None, rank: int) -> tuple[Limit, str]:
    rows, columns = np.flatnonzero(dominating.any(axis=1)), np.flatnonzero(dominating.any(axis=0))
    if list(rows) == [0]:  # an eigenvalue 1 of A that is not simple would tie
        return "input convergence", "only modes in which all tokens are equal (μ = 1) grow fastest"
    if rank == 1 and v is not None:
        return _line(v)
    if rank == 1:
        turning = "a complex μ with one λ" if len(rows) == 2 else f"{len(rows)} tied μ with one λ"
        return "collinear", f"rank one from {turning}: tokens on a line, with signs that turn or depend on the input"
    if rank >= min(dominating.shape):
        return "no collapse", f"{int(dominating.sum())} pairs (μ, λ) share the largest modulus: every direction stays"
    if rank == 2:
        kind = "both complex" if len(rows) == len(columns) == 2 else "tied"
        return "rank two", f"μ and λ are {kind}: two token and two feature directions stay"
    return "no collapse", f"{int(dominating.sum())} pairs (μ, λ) share the largest modulus: rank {rank} is preserved"


def _line(v: NDArray[np.float64]) -> tuple[Limit, str]:
    """What a single real token mode leaves."""
    if (np.abs(v) < 1e-9 * np.abs(v).max()).any():
        return "rank one", "one real μ, whose mode is zero on some tokens: these vanish beside the others"
    positive = int((v > 0).sum())
    if positive in (0, len(v)):
        return "angle convergence", "one real μ, whose mode has one sign on all tokens"
    return "collinear", f"one real μ, whose mode has {positive} signs of one kind and {len(v) - positive} of the other"


def _cosine(limit: Limit, v: NDArray[np.float64] | None) -> float | None:
    if v is None or limit not in ("input convergence", "angle convergence", "collinear"):
        return None
    return sign_cosine(int((v > 0).sum()), int((v < 0).sum()))


def _hfc_lfc(v: NDArray[np.float64] | None) -> float | None:
    if v is None:
        return None
    shared = abs(float(v.mean())) * len(v) ** 0.5
    # A mode that sums to zero (symmetric attention) leaves a mean of rounding errors only.
    return float(np.linalg.norm(v - v.mean())) / shared if shared > 1e-12 * np.linalg.norm(v) else inf


def _is_real(value: complex) -> bool:
    return abs(value.imag) <= TIE


def _log_ratio(numerator: float, denominator: float) -> float:
    if denominator == 0.0:
        return inf
    return log(numerator / denominator) if numerator > 0.0 else -inf
