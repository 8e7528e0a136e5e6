"""Attention sink: how much attention goes to the first token."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._attention import check_attention, real_tokens
from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio
from unsmooth.functional._tokens import at_least_float32, first_real


@metric(
    definition="mean over heads and queries of the attention paid to the first real key",
    paper="Xiao et al. 2023 (arXiv 2309.17453)",
    cost="O(heads·n)",
    chance_note="uniform attention gives 1/n, causal uniform attention (1 + 1/2 + … + 1/n)/n",
    degenerate="single token 1; all-zero 0",
    reads="attention",
)
def attention_sink(attention: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Mean attention that the real queries of each sequence pay to its first real key.

    .. math:: \frac{1}{Hn} \sum_{h, i} a_{h i f}, \qquad f = \text{the first real token}

    Xiao et al. 2023 (arXiv 2309.17453) call the token that gathers attention without being informative the
    sink. With left padding the first real key is not key 0. Rows are not renormalised: padded keys should
    carry no attention, as they do after a masked softmax, and where they do carry some the sink gets less.
    All real queries count, the first token's own included, which in a causal model is always 1.

    Args:
        attention: Attention weights (batch, heads, n, n) after the softmax, queries × keys.
        mask: Boolean (batch, n), True = a real token. Rows and columns at False are never read.

    Returns:
        One value in [0, 1] per sequence (batch,). A single token gives the weight on itself, 1 after a
        softmax; all-zero attention and an empty sequence give 0.

    Example:
        >>> attention = torch.tensor([[[[1.0, 0.0], [0.6, 0.4]]]])
        >>> attention_sink(attention)  # (1 + 0.6) / 2
        tensor([0.8000])
        >>> attention_sink(attention, torch.tensor([[False, True]]))  # the second token is the first real one
        tensor([0.4000])
    """
    check_attention(attention, mask)
    real_BN = real_tokens(attention, mask)
    _, heads, queries, _ = attention.shape
    index = first_real(real_BN)[:, None, None, None].expand(-1, heads, queries, 1)
    paid_BHQ = at_least_float32(attention.gather(3, index).squeeze(-1))
    paid_BQ = torch.where(real_BN, paid_BHQ.mean(dim=1), 0.0)
    return ratio(paid_BQ.sum(dim=1), real_BN.sum(dim=1).to(paid_BQ.dtype), otherwise=0.0)
