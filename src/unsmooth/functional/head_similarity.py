"""Head similarity: how alike the attention maps of the heads of one layer are."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._attention import check_attention, real_tokens, visible_keys
from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio
from unsmooth.functional._tokens import at_least_float32, euclidean_norm, inverse


@metric(
    definition="mean over queries and pairs of heads g ≠ h of the cosine between their rows of attention",
    paper="cosines of attention rows as in Zhou et al. 2021 (DeepViT, arXiv 2103.11886), there between layers, here "
    "between the heads of one",
    cost="O(heads·n²)",
    chance_note="1 for uniform attention, causal or not: heads that look everywhere are alike",
    degenerate="single token or single head 1; all-zero 0",
    reads="attention",
    rises_when_alike=None,
)
def head_similarity(attention: Tensor, mask: Tensor | None = None, *, causal: bool | None = None) -> Tensor:
    r"""Mean cosine between the attention rows that the heads of a layer give the same query.

    .. math:: \frac{1}{|R|} \sum_{i \in R} \frac{1}{H(H-1)} \sum_{g \ne h} \hat a_{gi} \cdot \hat a_{hi},
              \qquad \hat a_{hi} = a_{hi} / \lVert a_{hi} \rVert

    R are the real queries that see more than one key: of one key all heads say the same. Rows have no negative
    entries, so unrelated heads are above 0.

    Args:
        attention: Attention weights (batch, heads, n, n) after the softmax, queries × keys.
        mask: Boolean (batch, n), True = a real token. Rows and columns at False are never read.
        causal: Whether query i sees only keys j <= i. None finds out per sequence: causal if no real query of
            any head attends to a later real key.

    Returns:
        One value in [0, 1] per sequence (batch,); 1 for a single token or a single head, 0 for all-zero attention
        and an empty sequence.

    Example:
        >>> one = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        >>> other = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        >>> head_similarity(torch.stack([one, other]).unsqueeze(0))  # cosines 0 and 1
        tensor([0.5000])
    """
    check_attention(attention, mask)
    values = at_least_float32(attention)
    real_BN = real_tokens(values, mask)
    if mask is not None:
        values = values.masked_fill(~(mask.unsqueeze(1) & mask.unsqueeze(2)).unsqueeze(1), 0.0)
    counted_BN = real_BN & (visible_keys(values, real_BN, causal) > 1)
    # A row of tiny weights has a direction too: in units of its largest no square is zero.
    largest_BHQ1 = values.detach().abs().amax(dim=-1, keepdim=True)
    values = values / largest_BHQ1.masked_fill(largest_BHQ1 == 0, 1.0)
    norms_BHQ = euclidean_norm(values)
    unit_BHQK = values * inverse(norms_BHQ).unsqueeze(-1)
    nonzero_BQ = (norms_BHQ != 0).sum(dim=1)
    heads = values.shape[1]
    # Σ_{g≠h} û_g·û_h = ‖Σ_h û_h‖² − (heads with a row); one head is compared with itself.
    together_BQ = unit_BHQK.sum(dim=1).square().sum(dim=-1)
    similar_BQ = (together_BQ - nonzero_BQ) / (heads * (heads - 1)) if heads > 1 else together_BQ
    total_B = torch.where(counted_BN, similar_BQ, 0.0).sum(dim=1)
    nothing_to_compare_B = (norms_BHQ.flatten(1).sum(dim=1) != 0).to(values.dtype)
    count_B = counted_BN.sum(dim=1).to(values.dtype)
    return torch.where(count_B == 0, nothing_to_compare_B, ratio(total_B, count_B, otherwise=0.0))
