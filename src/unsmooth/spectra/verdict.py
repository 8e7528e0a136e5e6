"""What dominance is: the growth of the token mean beside the growth of the rest, and the word for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Verdict = Literal["smoothing", "sharpening", "preserving", "undecided"]
VERDICT_NAMES: tuple[Verdict, ...] = ("smoothing", "preserving", "undecided", "sharpening")
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Dominance:
    """Which side of one head or layer grows faster, the token mean or what differs from it.

    Attributes:
        mean_modulus: Growth of the fastest mode in which all tokens are equal.
        rest_modulus: Growth of the fastest other mode.
        margin: log(mean_modulus / rest_modulus).
        verdict: "smoothing" (margin above 0.001), "sharpening" (below −0.001), else "preserving" where both moduli
            are 1 within 0.001, else "undecided".
        feature_eigenvalue: λ of the dominating mode; for a whole layer its growth factor minus 1.
        token_eigenvalue: μ of the dominating mode, 1 where the mean dominates; None where many token modes share it
            (the null space of H) or where heads mix and there is no single one.
        mode_cosine: Mean pairwise cosine of the dominating mode's tokens; None where it was not asked for or where
            no single mode dominates.
        route: How it was found: "causal", "ritz", "dense" or "arnoldi".
    """

    mean_modulus: float
    rest_modulus: float
    margin: float
    verdict: Verdict
    feature_eigenvalue: complex
    token_eigenvalue: complex | None
    mode_cosine: float | None
    route: str


def log_ratio(mean: float, rest: float) -> float:
    """log(mean / rest), infinite where one side dies at once, 0 where both do."""
    if mean == rest:
        return 0.0
    if rest == 0.0:
        return math.inf
    return math.log(mean / rest) if mean > 0.0 else -math.inf


def verdict_codes(mean_G: Tensor, rest_G: Tensor) -> Tensor:
    """Positions in `VERDICT_NAMES` (heads,); they rise with the rest at a given mean."""
    margin_G = mean_G.log() - rest_G.log()
    still_G = ((mean_G - 1.0).abs() <= TOLERANCE) & ((rest_G - 1.0).abs() <= TOLERANCE)
    codes_G = torch.where(still_G, 1, 2)
    codes_G = torch.where(margin_G > TOLERANCE, 0, codes_G)
    return torch.where(margin_G < -TOLERANCE, 3, codes_G)


def verdict_of(mean: float, rest: float) -> Verdict:
    """The word for one pair of growth factors.

    Example:
        >>> verdict_of(1.5, 1.0), verdict_of(1.0, 1.0005), verdict_of(2.0, 2.0), verdict_of(1.0, 1.5)
        ('smoothing', 'preserving', 'undecided', 'sharpening')
    """
    pair = torch.tensor([[mean], [rest]], dtype=torch.float64)
    return VERDICT_NAMES[int(verdict_codes(pair[0], pair[1])[0])]
