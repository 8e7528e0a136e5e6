"""Two views of a sequence are to find each other among all views of the batch (DuoRec, Qiu et al. 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unsmooth.losses._loss import loss
from unsmooth.losses._states import Pooling, Positive, mean_where, two_views, unit


@loss(
    summary="both views of a sequence are to find each other among the two views of all others",
    equation="mean over the 2B views of −log softmax(z_i·z_j/τ over all j ≠ i) at the other view of i",
    paper="Qiu et al. 2022, arXiv 2110.05730; github.com/RuihongQiu/DuoRec",
    basis="code",
    reads="views",
    cost="O(B²d) for B sequences",
    degenerate="refused for a single sequence; a sequence without real tokens counts neither as one nor as another",
    unknown="whether sequences with the same target are left out of the negatives: not in the code, nor here",
)
def duorec(
    hidden_BND: Tensor,
    mask_BN: Tensor | None = None,
    *,
    other_BND: Tensor,
    other_mask_BN: Tensor | None = None,
    pooling: Pooling = "last",
    similarity: Literal["dot", "cosine"] = "dot",
    temperature: Positive = 1.0,
) -> Tensor:
    r"""Contrast between two views of each sequence, with 2(B − 1) negatives, in both directions.

    .. math:: -\frac{1}{2B} \sum_{i=1}^{2B} \log \frac{e^{z_i \cdot z_{i'}/\tau}}{\sum_{j \ne i} e^{z_i \cdot z_j/\tau}}

    with i' the other view of the same sequence. In DuoRec one view is the sequence under other dropout, the other a
    different sequence with the same next item; both are passes of the same model, and the caller chooses them.

    Args:
        hidden_BND: Hidden states (batch, tokens, dim) of one pass.
        mask_BN: Boolean (batch, tokens), True = a real token.
        other_BND: Hidden states of the other view of each sequence; its length may differ.
        other_mask_BN: Its real tokens. None takes `mask_BN`, which is that of another pass over the same sequences, not
            that of other sequences.
        pooling: What stands for a sequence: its "last" real token, its "first", or the "mean" of all.
        similarity: "dot" or "cosine".
        temperature: τ; the published run has 1.

    Returns:
        A scalar; log(2B − 1) where all are alike.

    Example:
        >>> z = torch.eye(2)[:, None]
        >>> duorec(z, other_BND=z)  # each has itself, 1, and two others, 0: log(1 + 2·exp(0 - 1))
        tensor(0.5514)
    """
    one_BD, two_BD, counted_B = two_views(hidden_BND, mask_BN, other_BND, other_mask_BN, pooling)
    views_VD, counted_V = torch.cat([one_BD, two_BD]), torch.cat([counted_B, counted_B])
    views_VD = unit(views_VD) if similarity == "cosine" else views_VD
    logits_VV = views_VD @ views_VD.mT / temperature
    own_V = torch.cat([logits_VV.diagonal(len(one_BD)), logits_VV.diagonal(-len(one_BD))])
    itself_VV = torch.eye(len(views_VD), dtype=torch.bool, device=views_VD.device)
    # Not −∞: a row in which nothing is left would have no gradient.
    logits_VV = logits_VV.masked_fill(itself_VV | ~counted_V, torch.finfo(logits_VV.dtype).min / 4)
    values_V = torch.logsumexp(logits_VV, dim=-1) - own_V
    return mean_where(values_V, counted_V).to(torch.promote_types(hidden_BND.dtype, torch.float32))
