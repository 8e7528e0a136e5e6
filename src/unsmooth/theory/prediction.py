"""What the eigenvalues of A and H say about the limit of many layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
