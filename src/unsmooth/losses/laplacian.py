"""Tokens that are near each other are pushed apart, by the Laplacian of the graph of their likeness.

Zhang et al. 2020 ("Revisiting representation degeneration problem in language modeling", Findings of EMNLP) show that a
low mean cosine does not rule degeneration out, and put a Laplacian regularisation in its place. Their abstract says no
more and we know of no public code: the formula below is a reconstruction in that spirit, not theirs. Two narrow cones
in opposite directions have a negative mean cosine; here, pairs within each cone are what counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.functional._pairs import over_rows
from unsmooth.losses._loss import loss
from unsmooth.losses._states import Positive, mean_where, states, unit

_FARTHER = -2.0  # below any cosine: a row without pairs


@loss(
    summary="tokens are pushed away from those they are most like",
    equation="−Σ_{i≠j} a_ij (1 − cos_ij) / Σ_{i≠j} a_ij, a_ij = exp(cos_ij/τ) without gradient",
    paper="after Zhang et al. 2020, Findings of EMNLP, 10.18653/v1/2020.findings-emnlp.46",
    basis="reconstructed",
    cost="O(n²d), a slice of rows at a time",
    degenerate="refused where sequences are one token long; one with fewer than two real tokens does not count",
    unknown="the graph, its weights and their scale in the paper: likeness by cosine, exp(cos/τ), τ = 0.1 here",
)
def laplacian(hidden_BND: Tensor, mask_BN: Tensor | None = None, *, temperature: Positive = 0.1) -> Tensor:
    r"""Minus the energy of unit tokens on the graph of their likeness, per edge weight.

    .. math:: -\frac{\operatorname{tr} \hat X^T L \hat X}{\sum_{i \ne j} a_{ij}}
              = -\frac{\sum_{i \ne j} a_{ij} \frac12 \lVert \hat x_i - \hat x_j \rVert^2}{\sum_{i \ne j} a_{ij}},
              \qquad a_{ij} = e^{\hat x_i \cdot \hat x_j / \tau}

    with the Laplacian L of the weights a, which are held constant. As τ grows, all pairs weigh the same and this is the
    mean cosine less 1.

    Args:
        hidden_BND: Hidden states (batch, tokens, dim), or a matrix (rows, dim) such as word embeddings.
        mask_BN: Boolean (batch, tokens), True = a real token.
        temperature: τ. The lower, the more only near pairs count.

    Returns:
        A scalar from −2 to 0: 0 where each token has its like. A zero token has cosine 0 with every other. A sequence
        with fewer than two real tokens does not count; without any that counts, the loss is 0.

    Example:
        >>> cones = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]])
        >>> laplacian(cones, temperature=0.1).abs() < 1e-6, laplacian(cones, temperature=1e6)  # mean cosine -1/3
        (tensor(True), tensor(-1.3333))
    """
    tokens = states(hidden_BND, mask_BN)
    unit_BND, mask_BN = unit(tokens.values_BND.double()), tokens.mask_BN

    def sums_of(cosines_BRN: Tensor, rows: slice) -> Tensor:
        left_out = _itself(cosines_BRN, rows)
        if mask_BN is not None:
            left_out = left_out | ~(mask_BN[:, rows, None] & mask_BN[:, None])
        # Weights are relative to the nearest pair, so that those of a low temperature do not all vanish.
        nearest_BR = cosines_BRN.detach().masked_fill(left_out, _FARTHER).amax(dim=-1)
        weights_BRN = ((cosines_BRN.detach() - nearest_BR.unsqueeze(-1)) / temperature).exp().masked_fill(left_out, 0.0)
        energy_BR = (weights_BRN * (1.0 - cosines_BRN)).sum(dim=-1)
        return torch.stack([energy_BR, weights_BRN.sum(dim=-1), nearest_BR], dim=-1)

    energy_BN, total_BN, nearest_BN = over_rows(unit_BND, sums_of).unbind(dim=-1)
    share_BN = ((nearest_BN - nearest_BN.amax(dim=1, keepdim=True)) / temperature).exp()
    energy_B, total_B = (share_BN * energy_BN).sum(dim=1), (share_BN * total_BN).sum(dim=1)
    counted_B = tokens.count_B >= 2.0
    values_B = -energy_B / torch.where(counted_B, total_B, 1.0)
    return mean_where(values_B.to(tokens.dtype), counted_B)


def _itself(products_BRN: Tensor, rows: slice) -> Tensor:
    """True where a row meets its own column (rows, tokens)."""
    places_N = torch.arange(products_BRN.shape[-1], device=products_BRN.device)
    return places_N[rows, None] == places_N
