"""Feature-map variance: how much each feature differs from token to token."""

from __future__ import annotations

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio
from unsmooth.functional._tokens import Tokens


@metric(
    definition="mean over features of their sample variance over the tokens of one sequence, Σ_i ‖x_i − x̄‖²/((n − 1)d)",
    paper="Park & Kim 2022 (arXiv 2202.06709), figure 9; xxxnell/how-do-vits-work, featuremap_variance.ipynb",
    cost="O(nd)",
    chance_note="none: grows with the square of the scale",
    degenerate="single token 0; all-zero 0",
    rises_when_alike=False,
    invariances=("permutation", "rotation", "translation", "reflection"),
)
def feature_map_variance(x: Tensor | Tokens, mask: Tensor | None = None, *, unbiased: bool = True) -> Tensor:
    r"""Variance of the features over the tokens of each sequence.

    .. math:: \frac1d \sum_{k=1}^d \frac{1}{n - 1} \sum_{i=1}^n (x_{ik} - \bar x_k)^2

    Park & Kim 2022 (arXiv 2202.06709) plot it over depth, class token left out: attention lowers it, MLPs raise it.
    It is `dirichlet_energy` divided by (n − 1)d, and follows the scale of the stream as that does.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        unbiased: Divide by n − 1, as their notebook does, else by n.

    Returns:
        One value per sequence (batch,). A single token and an all-zero or empty sequence give 0.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 0.0], [3.0, 0.0]]])  # variances 2 and 0
        >>> feature_map_variance(x)
        tensor([1.])
        >>> feature_map_variance(x, unbiased=False)
        tensor([0.5000])
    """
    tokens = Tokens.of(x, mask)
    free = tokens.count_B - 1.0 if unbiased else tokens.count_B
    return ratio(tokens.centred_energy_B, free.clamp_min(0.0) * tokens.dim, otherwise=0.0).to(tokens.dtype)
