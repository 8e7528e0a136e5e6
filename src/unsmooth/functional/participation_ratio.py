"""Participation ratio: how many directions share the variance of the tokens."""

from __future__ import annotations

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio
from unsmooth.functional._tokens import Tokens


def _chance(n: float, d: int) -> float:
    """1/E[tr(C²)/tr(C)²] for n independent Gaussian tokens, slightly below E[tr(C)²/tr(C²)]."""
    free = n - 1.0
    return (free * d + 2.0) / (free + d + 1.0) if free > 0.0 else 0.0


@metric(
    definition="tr(C)²/tr(C²), C the covariance of the tokens",
    paper="Gao et al. 2017 (bioRxiv 214262); Rudman et al. 2022 (arXiv 2108.07344)",
    cost="O(nd·min(n, d))",
    chance=_chance,
    chance_note="approximately ((n − 1)d + 2)/(n + d) for independent isotropic tokens",
    degenerate="single token 0 (no variance); all-zero 0; equal tokens 0",
    invariances=("permutation", "rotation", "scale", "translation", "reflection"),
)
def participation_ratio(x: Tensor | Tokens, mask: Tensor | None = None, *, centred: bool = True) -> Tensor:
    r"""Participation ratio of the principal components of each sequence.

    .. math:: \frac{(\operatorname{tr} C)^2}{\operatorname{tr} C^2}
              = \frac{(\sum_k \lambda_k)^2}{\sum_k \lambda_k^2}

    with the eigenvalues λ of the covariance C (Gao et al. 2017; Rudman et al. 2022, arXiv 2108.07344). No
    eigendecomposition: the trace and the Frobenius norm of the smaller Gram matrix, in float64.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        centred: Subtract the token mean (default), or use the second moment XᵀX if False.

    Returns:
        One value in [1, min(n − 1, d)] per sequence (batch,). Tokens without variance give 0: a single token,
        equal tokens, an all-zero or empty sequence. With centred=False a single token and equal tokens give
        1.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]])
        >>> participation_ratio(x)  # variances 18, 2: 20² / (18² + 2²)
        tensor([1.2195])
    """
    tokens = Tokens.of(x, mask)
    values = tokens.centred_BND if centred else tokens.exact_BND
    return participation_of(values).to(tokens.dtype)


def participation_of(values_BND: Tensor) -> Tensor:
    """(Σσ²)²/Σσ⁴ of each matrix, 0 for a zero matrix."""
    energy = values_BND.square().sum(dim=(1, 2))
    count, dim = values_BND.shape[1:]
    gram = values_BND @ values_BND.mT if count < dim else values_BND.mT @ values_BND
    return ratio(energy.square(), gram.square().sum(dim=(1, 2)), otherwise=0.0)
