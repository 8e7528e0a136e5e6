"""High- over low-frequency content: what differs between tokens over what they share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio, root
from unsmooth.functional._tokens import Tokens


def _chance(n: float, d: int) -> float:
    """E √(b/a) of independent chi-squares b with (n − 1)d and a with d degrees of freedom."""
    if n <= 1.0:
        return 0.0
    if d == 1:
        return math.inf
    low, high = d / 2.0, (n - 1.0) * d / 2.0
    return math.exp(math.lgamma(low - 0.5) - math.lgamma(low) + math.lgamma(high + 0.5) - math.lgamma(high))


@metric(
    definition="‖(I − Π)X‖/‖ΠX‖ = √((1 − t_sim)/t_sim), Π the mean over tokens",
    paper="Wang et al. 2022 (arXiv 2203.05962)",
    cost="O(nd)",
    chance=_chance,
    chance_note="about √(n − 1) for independent isotropic tokens",
    degenerate="single token 0; all-zero 0; infinite where the mean is exactly zero and the tokens are not",
    default=True,
    rises_when_alike=False,
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def hfc_lfc(x: Tensor | Tokens, mask: Tensor | None = None) -> Tensor:
    r"""Norm of the part that differs between tokens over the norm of the part that they share.

    .. math:: \frac{\lVert \mathrm{HFC}(X) \rVert_F}{\lVert \mathrm{LFC}(X) \rVert_F}
              = \frac{\lVert (I - \Pi) X \rVert_F}{\lVert \Pi X \rVert_F}
              = \sqrt{\frac{1 - t_\text{sim}}{t_\text{sim}}}

    LFC is the zero-frequency bin of the Fourier transform over tokens and HFC the rest (Wang et al. 2022,
    arXiv 2203.05962); by Parseval no transform is needed.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.

    Returns:
        One value in [0, ∞] per sequence (batch,): 0 for a single token and an all-zero or empty sequence,
        infinite for tokens that sum to exactly zero without being zero.

    Example:
        >>> hfc_lfc(torch.tensor([[[1.0, 2.0], [1.0, -2.0]]]))  # sqrt(8 / 2)
        tensor([2.])
    """
    tokens = Tokens.of(x, mask)
    shared, spread = tokens.mean_energy_B, tokens.centred_energy_B
    quotient = root(ratio(spread, shared, otherwise=0.0))
    return torch.where((shared == 0) & (spread > 0), torch.inf, quotient).to(tokens.dtype)
