"""Skewness of the singular values: a few large ones above many small ones, in one number."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import root
from unsmooth.functional._tokens import Tokens

# Singular values this close, relative to the largest, differ by the rounding of the SVD.
_EQUAL = 1e-12


@metric(
    definition="third standardised moment of the min(n, d) singular values of X",
    paper="Yan et al. 2022 (arXiv 2208.11790)",
    cost="O(nd·min(n, d)), float64 SVD",
    chance_note="no closed form for independent isotropic tokens; small, of either sign",
    degenerate="single token 0; all-zero 0; equal singular values 0",
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def singular_skewness(x: Tensor | Tokens, mask: Tensor | None = None) -> Tensor:
    r"""Population skewness of the singular values of each sequence.

    .. math:: \frac{\frac1K \sum_k (\sigma_k - \bar\sigma)^3}
                   {\bigl(\frac1K \sum_k (\sigma_k - \bar\sigma)^2\bigr)^{3/2}}, \qquad K = \min(n, d)

    with the singular values of X, not centred. Yan et al. 2022 (arXiv 2208.11790) read a large positive
    skewness as token uniformity: one direction far above the rest, as under collapse.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.

    Returns:
        One value per sequence (batch,); 0 where all singular values are equal, up to 1e-12 of the largest: a
        single token, an all-zero or empty sequence, orthogonal tokens of one length.

    Example:
        >>> x = torch.diag(torch.tensor([4.0, 1.0, 1.0])).unsqueeze(0)
        >>> singular_skewness(x)  # deviations 2, -1, -1: (6/3) / (6/3)^1.5
        tensor([0.7071])
    """
    tokens = Tokens.of(x, mask)
    singular, real = tokens.singular_values_BK, tokens.has_singular_value_BK
    count = tokens.rank_limit_B.double().clamp_min(1.0).unsqueeze(-1)
    deviation = (singular - singular.sum(dim=-1, keepdim=True) / count) * real
    spread = root(deviation.square().sum(dim=-1, keepdim=True) / count)
    equal = spread <= _EQUAL * singular[:, :1]
    standardised = torch.where(equal, 0.0, deviation) / torch.where(equal, 1.0, spread)
    return (standardised.pow(3).sum(dim=-1) / count.squeeze(-1)).to(tokens.dtype)
