"""Mean pairwise cosine of the tokens: what most papers plot, in the variants they silently differ in."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._pairs import over_rows
from unsmooth.functional._tokens import Tokens


@metric(
    definition="mean of x_i·x_j / (‖x_i‖‖x_j‖) over pairs i ≠ j of one sequence",
    paper="Gong et al. 2021 (arXiv 2104.12753); Ethayarajh 2019 (arXiv 1909.00512)",
    cost="O(nd); absolute=True O(n²d)",
    chance=lambda n, d: 0.0,
    chance_note="0 for independent isotropic tokens",
    degenerate="single token 1; zero tokens count as cosine 0, so an all-zero sequence gives 0",
    default=True,
    rises_when_alike=True,
    invariances=("permutation", "rotation", "scale", "token_scale", "reflection"),
)
def mean_cosine(
    x: Tensor | Tokens, mask: Tensor | None = None, *, absolute: bool = False, with_self: bool = False
) -> Tensor:
    r"""Mean cosine similarity between the tokens of each sequence.

    .. math:: \frac{1}{n(n-1)} \sum_{i \ne j} \hat x_i \cdot \hat x_j
              = \frac{\lVert \sum_i \hat x_i \rVert^2 - n}{n(n-1)}, \qquad \hat x_i = x_i / \lVert x_i \rVert

    The right-hand side needs no n×n matrix. Published curves differ in two silent choices, given here as
    options: the absolute value (Gong et al. 2021, arXiv 2104.12753) and the diagonal.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        absolute: Average |cosine| instead; needs all pairs, built in slices in float64.
        with_self: Include the n pairs i = j, which adds (1 − c)/n to c.

    Returns:
        One value per sequence (batch,). A single token gives 1. A zero token has cosine 0 with every token,
        itself included, so an all-zero or empty sequence gives 0.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]])
        >>> mean_cosine(x)  # cosines 0, -1, 0
        tensor([-0.3333])
        >>> mean_cosine(x, absolute=True)
        tensor([0.3333])
        >>> mean_cosine(x, with_self=True)  # (3·1 + 2·(0 - 1 + 0)) / 9
        tensor([0.1111])
    """
    tokens = Tokens.of(x, mask)
    count, nonzero = tokens.count_B, tokens.nonzero_B
    total = _absolute_sum(tokens) if absolute else tokens.unit_sum_BD.square().sum(dim=-1)
    if with_self:
        return (total / count.square().clamp_min(1.0)).to(tokens.dtype)
    pairs = count * (count - 1.0)
    off_diagonal = (total - nonzero) / pairs.clamp_min(1.0)
    # Without a pair the total is the token's cosine with itself: 1, or 0 for a zero token.
    return torch.where(pairs > 0, off_diagonal, total).to(tokens.dtype)


def _absolute_sum(tokens: Tokens) -> Tensor:
    """Σ_ij |x̂_i·x̂_j|, a slice of rows at a time."""
    unit_BND = tokens.exact_BND * tokens.inverse_norms_BN.unsqueeze(-1)
    sums_BN = over_rows(unit_BND, lambda products_BRN, rows: products_BRN.abs().sum(dim=-1))
    return sums_BN.sum(dim=-1)
