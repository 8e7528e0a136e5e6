"""Linear CKA: how alike the geometry of the same tokens is at two places of a model."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._profile import LayerPairs
from unsmooth.functional._ratios import ratio, root
from unsmooth.functional._tokens import Tokens, pair_of

MOST_TOKENS = 256
"""Of longer sequences so many tokens, spread evenly, stand for all where every layer is compared with every other."""


def centred_products(tokens: Tokens) -> Tensor:
    """(x_i − x̄)·(x_j − x̄) of each sequence, up to 256 × 256 numbers: all that linear CKA reads.

    In units of their root sum of squares, which linear CKA does not see and float32 can hold at any scale.
    """
    centred_BND = thinned(tokens, MOST_TOKENS).centred_BND
    products_BNN = centred_BND @ centred_BND.mT
    size_B11 = products_BNN.square().sum(dim=(1, 2), keepdim=True).sqrt()
    return ratio(products_BNN, size_B11, otherwise=0.0).float()


def alignment(products_x: Tensor, products_y: Tensor) -> Tensor:
    """Linear CKA from the centred products of the same tokens in two layers."""
    x_BNN, y_BNN = products_x.double(), products_y.double()
    norms = root(x_BNN.square().sum(dim=(1, 2))) * root(y_BNN.square().sum(dim=(1, 2)))
    return ratio((x_BNN * y_BNN).sum(dim=(1, 2)), norms, otherwise=0.0)


@metric(
    definition="‖YᵀX‖_F²/(‖XᵀX‖_F‖YᵀY‖_F), columns centred over the tokens of one sequence",
    paper="Kornblith et al. 2019 (arXiv 1905.00414)",
    cost="O(nd·min(n, d))",
    chance=lambda n, d: d / (n + d) if n > 1.0 else 0.0,
    chance_note="approximately d/(n + d) between two independent sets of isotropic tokens, not 0",
    degenerate="0 where x or y has no variance: single token, all-zero, equal tokens",
    reads="pair",
    invariances=("permutation", "rotation", "scale", "translation", "reflection"),
    profile=LayerPairs(centred_products, alignment, "linear CKA of two layers, mean over sequences"),
)
def linear_cka(x: Tensor | Tokens, y: Tensor | Tokens, mask: Tensor | None = None) -> Tensor:
    r"""Linear centred kernel alignment of each sequence at two places.

    .. math:: \frac{\lVert Y^\top X \rVert_F^2}{\lVert X^\top X \rVert_F \, \lVert Y^\top Y \rVert_F}

    with the columns of X and Y centred over the tokens (Kornblith et al. 2019, arXiv 1905.00414). Not
    debiased, so with fewer tokens than features even unrelated inputs come out well above 0. In float64,
    through the n×n or the d×d products, whichever is smaller. A scan compares each layer with the one before it, and
    beside that every layer with every other (of sequences beyond 256 tokens by as many, spread evenly).

    Args:
        x: Token vectors (batch, tokens, dim).
        y: Token vectors (batch, tokens, dim of y) over the same tokens.
        mask: Boolean (batch, tokens), True = a real token, for both.

    Returns:
        One value in [0, 1] per sequence (batch,); 0 where `x` or `y` has no variance: a single token, equal
        tokens, an all-zero or empty sequence.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]])
        >>> y = torch.tensor([[[1.0], [-1.0], [0.0], [0.0]]])
        >>> linear_cka(x, y)  # ‖(2, 0)‖² / (sqrt(4 + 4)·2)
        tensor([0.7071])
    """
    first, second = pair_of(x, y, mask)
    x_BND, y_BND = first.centred_BND, second.centred_BND
    if x_BND.shape[1] < min(first.dim, second.dim):
        gram_x, gram_y = x_BND @ x_BND.mT, y_BND @ y_BND.mT
        shared = (gram_x * gram_y).sum(dim=(1, 2))
    else:
        gram_x, gram_y = x_BND.mT @ x_BND, y_BND.mT @ y_BND
        shared = (y_BND.mT @ x_BND).square().sum(dim=(1, 2))
    norms = root(gram_x.square().sum(dim=(1, 2))) * root(gram_y.square().sum(dim=(1, 2)))
    return ratio(shared, norms, otherwise=0.0).to(first.dtype)


def thinned(tokens: Tokens, most: int) -> Tokens:
    """At most so many real tokens of each sequence, each from the middle of one of as many equal stretches.

    Which they are depends on the number of real tokens alone, so every layer keeps the same.

    >>> thinned(Tokens(torch.arange(6.0).view(1, 6, 1)), 3).values_BND.flatten()
    tensor([1., 3., 5.])
    """
    width = tokens.input_BND.shape[1]
    if width <= most:
        return tokens
    place_K = torch.arange(most, device=tokens.input_BND.device)
    count_B1 = tokens.count_B.double().unsqueeze(-1)
    kept_B1 = count_B1.clamp_max(float(most))
    index_BK = ((place_K + 0.5) * count_B1 / kept_B1.clamp_min(1.0)).long().clamp_max(width - 1)
    real_BK = place_K < kept_B1
    if tokens.mask_BN is not None:
        real_first_BN = (~tokens.mask_BN).to(torch.uint8).argsort(dim=1, stable=True)
        index_BK = real_first_BN.gather(1, index_BK)
    vectors = tokens.input_BND.gather(1, index_BK.unsqueeze(-1).expand(-1, -1, tokens.dim))
    return Tokens(vectors, real_BK)
