"""Token similarity t_sim: the share of the energy that lies in the token mean."""

from __future__ import annotations

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import similarity_of
from unsmooth.functional._tokens import Tokens


@metric(
    definition="‖ΠX‖²/‖X‖² = n‖x̄‖²/Σ‖x_i‖², Π the mean over tokens",
    paper="Yu & Zhang 2023 (arXiv 2312.06182)",
    cost="O(nd)",
    chance=lambda n, d: 1.0 / max(n, 1.0),
    chance_note="1/n for independent isotropic tokens",
    degenerate="single token 1; all-zero 1",
    default=True,
    rises_when_alike=True,
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def token_similarity(x: Tensor | Tokens, mask: Tensor | None = None, *, squared: bool = True) -> Tensor:
    r"""Share of the energy of each sequence that all its tokens have in common.

    .. math:: t_\text{sim}(X) = \frac{\lVert \Pi X \rVert_F^2}{\lVert X \rVert_F^2}
              = \frac{n \lVert \bar x \rVert^2}{\sum_i \lVert x_i \rVert^2}, \qquad \Pi = \tfrac1n 1 1^\top

    Long tokens weigh more than short ones, unlike in the mean cosine; for unit vectors it equals the mean
    cosine with self-pairs. Its chance level is 1/n, so compare sequences of the same length.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        squared: Ratio of squared norms (default) or, if False, of norms. Yu & Zhang (arXiv 2312.06182)
            released no code, and which of the two their curves show is not known.

    Returns:
        One value in [0, 1] per sequence (batch,). A single token and an all-zero or empty sequence give 1.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 2.0], [1.0, -2.0]]])  # mean (1, 0): 2·1 of 10
        >>> token_similarity(x)
        tensor([0.2000])
        >>> token_similarity(x, squared=False)
        tensor([0.4472])
    """
    tokens = Tokens.of(x, mask)
    return similarity_of(tokens.mean_energy_B, tokens.centred_energy_B, squared).to(tokens.dtype)
