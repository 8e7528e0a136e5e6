"""Token diversity t_div: the share of the energy that tells tokens apart."""

from __future__ import annotations

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import diversity_of
from unsmooth.functional._tokens import Tokens


@metric(
    definition="‖(I − Π)X‖²/‖X‖² = 1 − t_sim, Π the mean over tokens",
    paper="Yu & Zhang 2023 (arXiv 2312.06182)",
    cost="O(nd)",
    chance=lambda n, d: 1.0 - 1.0 / max(n, 1.0),
    chance_note="1 − 1/n for independent isotropic tokens",
    degenerate="single token 0; all-zero 0",
    default=True,
    rises_when_alike=False,
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def token_diversity(x: Tensor | Tokens, mask: Tensor | None = None, *, squared: bool = True) -> Tensor:
    r"""Share of the energy of each sequence that its tokens do not have in common.

    .. math:: t_\text{div}(X) = 1 - t_\text{sim}(X)
              = \frac{\sum_i \lVert x_i - \bar x \rVert^2}{\sum_i \lVert x_i \rVert^2}

    Computed from the differences, so that it keeps its digits where t_sim has rounded to 1 (Yu & Zhang 2023,
    arXiv 2312.06182).

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        squared: One minus the ratio of squared norms (default) or, if False, of norms: the complement of
            `token_similarity` with the same option.

    Returns:
        One value in [0, 1] per sequence (batch,). A single token and an all-zero or empty sequence give 0.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 2.0], [1.0, -2.0]]])  # (2² + 2²) of 10
        >>> token_diversity(x)
        tensor([0.8000])
        >>> token_diversity(x, squared=False)  # 1 - sqrt(0.2)
        tensor([0.5528])
    """
    tokens = Tokens.of(x, mask)
    return diversity_of(tokens.mean_energy_B, tokens.centred_energy_B, squared).to(tokens.dtype)
