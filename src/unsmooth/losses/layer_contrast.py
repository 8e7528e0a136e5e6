"""Each token of the last layer is to know itself by its first layer (Gong et al. 2021, L_con)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import expected
from unsmooth.functional import Tokens
from unsmooth.losses._loss import loss
from unsmooth.losses._states import Positive, mean_where, same_tokens, states


@loss(
    summary="a token's last state is to fit its first state better than the mean of the others' last states does",
    equation="mean over i of −log softmax₁(f_i·x_i, f_i·x̄_{−i}), f without gradient, x̄_{−i} the mean without i",
    paper="Gong et al. 2021, arXiv 2104.12753; github.com/ChengyueGongR/PatchVisionTransformer",
    cost="O(nd)",
    degenerate="refused where sequences are one token long; one with fewer than two real tokens does not count",
    reads="layers",
    unknown="whether products are scaled: not in the code, so temperature=1",
)
def layer_contrast(
    hidden_BND: Tensor,
    mask_BN: Tensor | None = None,
    *,
    first_BND: Tensor,
    temperature: Positive = 1.0,
    neighbourhood: int = 0,
) -> Tensor:
    r"""Contrast of each token with the others, as seen from the first layer.

    .. math:: -\frac{1}{n} \sum_i \log \frac{e^{f_i \cdot x_i}}{e^{f_i \cdot x_i} + e^{f_i \cdot \bar x_{-i}}},
              \qquad \bar x_{-i} = \frac{1}{n-1} \sum_{j \ne i} x_j

    Args:
        hidden_BND: Hidden states of the last layer (batch, tokens, dim), without class tokens.
        mask_BN: Boolean (batch, tokens), True = a real token.
        first_BND: The same tokens in the first layer; no gradient goes there. In the authors' code these are patches
            before positions are added.
        temperature: What products are divided by.
        neighbourhood: Side of a window, odd: the mean of the others in it is a second thing to be told from, where
            tokens are patches of square images. The authors' code has 7, and takes zero tokens beyond the border. 0
            for none.

    Returns:
        A scalar. All tokens equal give log 2, or log 3 with a neighbourhood and no border. A sequence with fewer than
        two real tokens does not count; without any that counts, the loss is 0.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> layer_contrast(x, first_BND=x)  # log(1 + exp(0 - 1))
        tensor(0.3133)
    """
    tokens = states(hidden_BND, mask_BN)
    first = same_tokens(first_BND, tokens, "first_BND").values_BND.detach()
    x_BND = tokens.values_BND
    count_B1 = tokens.count_B.unsqueeze(-1)
    own_BN = (first * x_BND).sum(dim=-1)
    all_BN = (first * x_BND.sum(dim=1, keepdim=True)).sum(dim=-1)
    others = [(all_BN - own_BN) / (count_B1 - 1.0).clamp_min(1.0)]
    if neighbourhood:
        others.append((first * _around(tokens, neighbourhood)).sum(dim=-1))
    logits_BNC = torch.stack([own_BN, *others], dim=-1) / temperature
    values_BN = torch.logsumexp(logits_BNC, dim=-1) - logits_BNC[..., 0]
    if tokens.mask_BN is not None:
        values_BN = torch.where(tokens.mask_BN, values_BN, 0.0)
    values_B = values_BN.sum(dim=1) / tokens.count_B.clamp_min(1.0)
    return mean_where(values_B, tokens.count_B >= 2.0).to(tokens.dtype)


def _around(tokens: Tokens, side: int) -> Tensor:
    """Mean of the other tokens in a window around each, zero tokens beyond the border."""
    x_BND = tokens.values_BND
    count = x_BND.shape[1]
    grid = math.isqrt(count)
    if side < 3 or side % 2 == 0:
        raise expected("neighbourhood as an odd number from 3 on, or 0", repr(side), "neighbourhood=7")
    if grid * grid != count or tokens.mask_BN is not None:
        got = "a mask" if tokens.mask_BN is not None else f"{count} tokens"
        raise expected("patches of a square image for a neighbourhood", got, "neighbourhood=0")
    image_BDHW = torch.unflatten(x_BND.mT, -1, (grid, grid))
    sums = F.avg_pool2d(image_BDHW, side, stride=1, padding=side // 2, divisor_override=1)
    return (sums.flatten(2).mT - x_BND) / (side * side - 1.0)
