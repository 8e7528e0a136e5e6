"""Attention entropy: how spread out attention is, comparable between rows that see more keys and fewer."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._attention import check_attention, real_tokens, visible_keys
from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio
from unsmooth.functional._tokens import at_least_float32


@metric(
    definition="mean over heads and queries of −Σ_j a_ij log a_ij / log(number of keys that query i may see)",
    paper="Zhai et al. 2023 (arXiv 2303.06296), normalised per row here",
    cost="O(heads·n²)",
    chance_note="1 for uniform attention, causal or not",
    degenerate="queries that see one key are left out; 0 where no others are: single token; all-zero 0",
    reads="attention",
)
def attention_entropy(attention: Tensor, mask: Tensor | None = None, *, causal: bool | None = None) -> Tensor:
    r"""Mean normalised entropy of the attention rows of each sequence.

    .. math:: \frac{1}{|R|} \sum_{(h, i) \in R} \frac{-\sum_j a_{hij} \log a_{hij}}{\log m_i}

    where m_i is the number of real keys that query i may see and R are all heads and real queries that see
    more than one. The entropy of Zhai et al. 2023 (arXiv 2303.06296) has the maximum log m_i, which in a causal model
    differs between rows; divided by it, every row lies between 0 (one key) and 1 (uniform). A query that sees
    one key has no choice, so it says nothing and is left out of the mean.

    Rows are taken as they are: where padded keys got attention, what is left sums to less than 1. Negative
    weights, which are no distribution, give NaN. Windowed attention is compared with the full or causal
    maximum.

    Args:
        attention: Attention weights (batch, heads, n, n) after the softmax, queries × keys.
        mask: Boolean (batch, n), True = a real token. Rows and columns at False are never read.
        causal: Whether query i sees only keys j <= i. None finds out per sequence: causal if no real query of
            any head attends to a later real key.

    Returns:
        One value in [0, 1] per sequence (batch,); 0 for a single token, all-zero attention and an empty
        sequence.

    Example:
        >>> uniform = torch.full((1, 1, 2, 2), 0.5)
        >>> attention_entropy(uniform)
        tensor([1.])
        >>> causal = torch.tensor([[[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]]])
        >>> attention_entropy(causal)  # rows: left out, log 2/log 2, log 2/log 3
        tensor([0.8155])
    """
    check_attention(attention, mask)
    values = at_least_float32(attention)
    real_BN = real_tokens(values, mask)
    if mask is not None:
        values = values.masked_fill(~(mask.unsqueeze(1) & mask.unsqueeze(2)).unsqueeze(1), 0.0)
    visible_BN = visible_keys(values, real_BN, causal)
    counted_BN = real_BN & (visible_BN > 1)
    # log 1 in place of log 0: 0·log 0 = 0, and a gradient of zero where the true one is infinite.
    entropy_BHQ = -(values * torch.where(values == 0, 1.0, values).log()).sum(dim=-1)
    largest_BQ = torch.where(counted_BN, visible_BN, 2).to(values.dtype).log()
    normalised_BQ = torch.where(counted_BN, entropy_BHQ.mean(dim=1) / largest_BQ, 0.0)
    return ratio(normalised_BQ.sum(dim=1), counted_BN.sum(dim=1).to(values.dtype), otherwise=0.0)
