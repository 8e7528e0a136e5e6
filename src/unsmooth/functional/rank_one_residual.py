"""Relative residual after the token mean: how far X is from all tokens being one vector."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import diversity_of, ratio, root
from unsmooth.functional._tokens import Tokens


@metric(
    definition="‖X − 1x̄ᵀ‖/‖X‖ in the norm √(‖·‖₁‖·‖_∞), x̄ the token mean",
    paper="Dong et al. 2021 (arXiv 2103.03404)",
    cost="O(nd)",
    chance=lambda n, d: (1.0 - 1.0 / max(n, 1.0)) ** 0.5,
    chance_note="approximately √(1 − 1/n) for independent isotropic tokens",
    degenerate="single token 0; all-zero 0",
    default=True,
    rises_when_alike=False,
    invariances=("permutation", "scale", "reflection"),
)
def rank_one_residual(
    x: Tensor | Tokens, mask: Tensor | None = None, *, norm: Literal["composite", "frobenius"] = "composite"
) -> Tensor:
    r"""Norm of what is left of each sequence without its token mean, relative to the norm of the sequence.

    .. math:: \frac{\lVert X - 1 \bar x^\top \rVert_{1,\infty}}{\lVert X \rVert_{1,\infty}}, \qquad
              \lVert M \rVert_{1,\infty} = \sqrt{\lVert M \rVert_1 \, \lVert M \rVert_\infty}

    with the largest absolute column sum ‖M‖₁ and row sum ‖M‖_∞ (Dong et al. 2021, arXiv 2103.03404). They
    take the vector that minimises the residual; the token mean does so in the Frobenius norm and is used here
    for both. The composite norm depends on the feature axes and may exceed 1.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        norm: "composite" as above, or "frobenius", which gives √(1 − t_sim).

    Returns:
        One value per sequence (batch,). A single token and an all-zero or empty sequence give 0.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 2.0], [1.0, -2.0]]])
        >>> rank_one_residual(x)  # largest column and row sum 4, 2 without (1, 0), else 4, 3: sqrt(8 / 12)
        tensor([0.8165])
        >>> rank_one_residual(x, norm="frobenius")  # sqrt(8 / 10)
        tensor([0.8944])
    """
    tokens = Tokens.of(x, mask)
    if norm == "frobenius":
        return root(diversity_of(tokens.mean_energy_B, tokens.centred_energy_B, squared=True))
    whole = _squared_composite(tokens.absolute_columns_BD, tokens.absolute_rows_BN)
    rest = _squared_composite(tokens.centred_absolute_columns_BD, tokens.centred_absolute_rows_BN)
    return root(ratio(rest, whole, otherwise=0.0))


def _squared_composite(columns_BD: Tensor, rows_BN: Tensor) -> Tensor:
    """‖M‖₁‖M‖_∞ from the absolute column and row sums; zero rows at padding change neither."""
    return columns_BD.amax(dim=-1) * rows_BN.amax(dim=-1)
