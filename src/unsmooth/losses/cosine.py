"""Mean cosine of the tokens as a loss: the plainest way to keep them apart.

Gao et al. 2019 put it on word embeddings, with 1/n² instead of 1/(n(n − 1)) in front; Gong et al. 2021 on the patches
of the last layer, by absolute value.
"""

from __future__ import annotations

from torch import Tensor

from unsmooth.functional import mean_cosine
from unsmooth.losses._loss import loss
from unsmooth.losses._states import mean_where, states


@loss(
    summary="the mean cosine of different tokens is kept low",
    equation="mean over i ≠ j of x_i·x_j / (‖x_i‖‖x_j‖), mean over sequences",
    paper="Gao et al. 2019, arXiv 1907.12009; Gong et al. 2021, arXiv 2104.12753",
    cost="O(nd); absolute=True O(n²d), a slice of rows at a time",
    degenerate="refused where sequences are one token long; one with fewer than two real tokens does not count",
    unknown="whether Gong et al. leave the diagonal out: left out here",
)
def cosine(
    hidden_BND: Tensor, mask_BN: Tensor | None = None, *, absolute: bool = False, over_square: bool = False
) -> Tensor:
    r"""Mean cosine between different tokens of a sequence, averaged over sequences.

    .. math:: \frac{1}{n(n-1)} \sum_{i \ne j} \hat x_i \cdot \hat x_j
              = \frac{\lVert \sum_i \hat x_i \rVert^2 - n}{n(n-1)}, \qquad \hat x_i = x_i / \lVert x_i \rVert

    It is `unsmooth.functional.mean_cosine`, so what a scan shows is what is trained.

    Args:
        hidden_BND: Hidden states (batch, tokens, dim), or a matrix (rows, dim) such as word embeddings.
        mask_BN: Boolean (batch, tokens), True = a real token.
        absolute: Average |cosine|, as Gong et al. 2021 do on the last layer.
        over_square: Divide by n² instead of n(n − 1), as Gao et al. 2019 do on word embeddings.

    Returns:
        A scalar. A zero token has cosine 0 with every other, and a zero gradient. A sequence with fewer than two real
        tokens does not count; without any that counts, the loss is 0.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]])
        >>> cosine(x)  # cosines 0, -1, 0
        tensor(-0.3333)
        >>> cosine(x, absolute=True), cosine(x, over_square=True)  # 1/3, and -2/9
        (tensor(0.3333), tensor(-0.2222))
    """
    tokens = states(hidden_BND, mask_BN)
    values_B, count_B = mean_cosine(tokens, absolute=absolute), tokens.count_B
    if over_square:
        values_B = values_B * (count_B - 1.0) / count_B.clamp_min(1.0)
    return mean_where(values_B, count_B >= 2.0).to(tokens.dtype)
