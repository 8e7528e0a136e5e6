"""Stable rank: the energy of X in units of its strongest direction."""

from __future__ import annotations

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio
from unsmooth.functional._tokens import Tokens


@metric(
    definition="‖X‖_F²/‖X‖₂² = Σσ_k²/σ₁²",
    paper="Rudelson & Vershynin 2007 (arXiv math/0503442)",
    cost="O(nd·min(n, d)), float64 SVD",
    chance_note="no closed form for independent isotropic tokens; about nd/(√n + √d)²",
    degenerate="single token 1; all-zero 0",
    rises_when_alike=False,
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def stable_rank(x: Tensor | Tokens, mask: Tensor | None = None) -> Tensor:
    r"""Stable rank of each sequence.

    .. math:: \frac{\lVert X \rVert_F^2}{\lVert X \rVert_2^2} = \sum_k \frac{\sigma_k^2}{\sigma_1^2}

    with the singular values σ of X, not centred (Rudelson & Vershynin 2007, arXiv math/0503442). Small
    singular values hardly move it, which is what "stable" means.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.

    Returns:
        One value in [1, min(n, d)] per sequence (batch,). A single token gives 1, an all-zero or empty
        sequence 0.

    Example:
        >>> import torch
        >>> stable_rank(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]))  # (4 + 1) / 4
        tensor([1.2500])
    """
    tokens = Tokens.of(x, mask)
    largest = tokens.singular_values_BK[:, :1]
    # Relative to σ₁ before squaring, so that no scale of the input can overflow.
    relative = ratio(tokens.singular_values_BK, largest, otherwise=0.0)
    return relative.square().sum(dim=-1).to(tokens.dtype)
