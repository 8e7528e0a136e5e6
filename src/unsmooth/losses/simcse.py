"""Two passes over a sentence, which differ in their dropout, are to find each other (SimCSE, Gao et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.losses._loss import loss
from unsmooth.losses._states import Pooling, Positive, mean_where, two_views, unit


@loss(
    summary="a sequence is to be most like itself in another pass, among all sequences of the batch",
    equation="mean over i of −log softmax_i(cos(z_i, z'_j)/τ over j)",
    paper="Gao, Yao & Chen 2021, arXiv 2104.08821; github.com/princeton-nlp/SimCSE",
    basis="code",
    reads="views",
    cost="O(B²d) for B sequences",
    degenerate="refused for a single sequence; a sequence without real tokens counts neither as one nor as another",
)
def simcse(
    hidden_BND: Tensor,
    mask_BN: Tensor | None = None,
    *,
    other_BND: Tensor,
    other_mask_BN: Tensor | None = None,
    pooling: Pooling = "first",
    temperature: Positive = 0.05,
) -> Tensor:
    r"""Contrast between two views of each sequence, with the other sequences of the batch as negatives.

    .. math:: -\frac1B \sum_i \log \frac{e^{\cos(z_i, z'_i)/\tau}}{\sum_j e^{\cos(z_i, z'_j)/\tau}}

    Unsupervised SimCSE hands the same batch to a model in training mode twice, so that only dropout differs. Its linear
    map and tanh over the class token belong to the model. Negatives are those of this process; they are not gathered
    from others.

    Args:
        hidden_BND: Hidden states (batch, tokens, dim) of one pass.
        mask_BN: Boolean (batch, tokens), True = a real token.
        other_BND: Hidden states of the same sequences in another pass.
        other_mask_BN: Its real tokens, where they differ from `mask_BN`.
        pooling: What stands for a sequence: its "first" real token, its "last", or the "mean" of all.
        temperature: τ; the paper's is 0.05.

    Returns:
        A scalar; log B where all sequences are alike.

    Example:
        >>> z = torch.eye(2)[:, None]
        >>> simcse(z, other_BND=z, temperature=1.0)  # log(1 + exp(0 - 1))
        tensor(0.3133)
    """
    one_BD, two_BD, counted_B = two_views(hidden_BND, mask_BN, other_BND, other_mask_BN, pooling)
    logits_BB = unit(one_BD) @ unit(two_BD).mT / temperature
    own_B = logits_BB.diagonal()
    # Not −∞: a row in which nothing is left would have no gradient.
    logits_BB = logits_BB.masked_fill(~counted_B, torch.finfo(logits_BB.dtype).min / 4)
    values_B = torch.logsumexp(logits_BB, dim=-1) - own_B
    return mean_where(values_B, counted_B).to(torch.promote_types(hidden_BND.dtype, torch.float32))
