"""Effective rank: the exponential of the entropy of the singular values."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio
from unsmooth.functional._tokens import Tokens


@metric(
    definition="exp(−Σ p_k log p_k), p_k = σ_k/Σσ over the min(n, d) singular values of X",
    paper="Roy & Vetterli 2007 (EUSIPCO, pp. 606–610)",
    cost="O(nd·min(n, d)), float64 SVD",
    chance_note="no closed form for independent isotropic tokens; 0.8 (n = d) to 1 times min(n, d)",
    degenerate="single token 1; all-zero 0",
    rises_when_alike=False,
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def effective_rank(x: Tensor | Tokens, mask: Tensor | None = None) -> Tensor:
    r"""Effective rank of each sequence: how many directions its tokens use, weighted by how much.

    .. math:: \exp\Bigl(-\sum_k p_k \log p_k\Bigr), \qquad p_k = \frac{\sigma_k}{\sum_j \sigma_j}

    with the singular values σ of X, not centred, and 0·log 0 = 0 (Roy & Vetterli 2007, "The effective rank",
    EUSIPCO; used on tokens by Guo et al. 2023, arXiv 2303.06562).

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.

    Returns:
        One value in [1, min(n, d)] per sequence (batch,). A single token gives 1, an all-zero or empty
        sequence 0.

    Example:
        >>> effective_rank(torch.tensor([[[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]]]))  # p = 1/2, 1/2
        tensor([2.])
        >>> effective_rank(torch.tensor([[[3.0, 0.0], [0.0, 1.0]]]))  # p = 3/4, 1/4: exp(0.5623)
        tensor([1.7548])
    """
    tokens = Tokens.of(x, mask)
    singular = tokens.singular_values_BK
    total = singular.sum(dim=-1)
    share = ratio(singular, total.unsqueeze(-1), otherwise=0.0)
    # log 1 in place of log 0: 0·log 0 = 0, and a gradient of zero where the true one is infinite.
    entropy = -(share * torch.where(share == 0, 1.0, share).log()).sum(dim=-1)
    return torch.where(total == 0, 0.0, entropy.exp()).to(tokens.dtype)
