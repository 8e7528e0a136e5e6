"""Dirichlet energy on the complete graph: how much neighbouring tokens differ when all are neighbours."""

from __future__ import annotations

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import diversity_of
from unsmooth.functional._tokens import Tokens


@metric(
    definition="(1/2n) Σ_ij ‖x_i − x_j‖² = ‖(I − Π)X‖², Π the mean over tokens",
    paper="Cai & Wang 2020 (arXiv 2006.13318), on the complete graph",
    cost="O(nd)",
    chance_note="none: grows with the square of the scale (normalised=True: 1 − 1/n, as token_diversity)",
    degenerate="single token 0; all-zero 0",
    default=True,
    rises_when_alike=False,
    invariances=("permutation", "rotation", "translation", "reflection"),
)
def dirichlet_energy(x: Tensor | Tokens, mask: Tensor | None = None, *, normalised: bool = False) -> Tensor:
    r"""Dirichlet energy of each sequence, every token being a neighbour of every other.

    .. math:: E(X) = \frac{1}{2n} \sum_{i,j} \lVert x_i - x_j \rVert^2 = \lVert (I - \Pi) X \rVert_F^2

    the energy of Cai & Wang 2020 (arXiv 2006.13318) with the complete graph in place of a given one. It
    follows the scale of the stream, which grows with depth in pre-norm models: read it next to a scale-free
    metric.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        normalised: Divide by ‖X‖², which gives `token_diversity`.

    Returns:
        One value per sequence (batch,). A single token and an all-zero or empty sequence give 0. A square beyond the
        range of the input's type is 0 or infinite, as of float32 tokens shorter than 1e-22 or longer than 1e19.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[1.0, 2.0], [1.0, -2.0]]])  # (16 + 16) / 4
        >>> dirichlet_energy(x)
        tensor([8.])
        >>> dirichlet_energy(x, normalised=True)
        tensor([0.8000])
    """
    tokens = Tokens.of(x, mask)
    spread = tokens.centred_energy_B
    value = diversity_of(tokens.mean_energy_B, spread, squared=True) if normalised else spread
    return value.to(tokens.dtype)
