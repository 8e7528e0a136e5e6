"""Quantiles of the pairwise cosines, and their whole histogram: what a mean hides, such as two clusters of tokens."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from unsmooth.functional._metric import metric, with_checked_options
from unsmooth.functional._profile import Profile
from unsmooth.functional._sampled_pairs import sampled_cosines
from unsmooth.functional._tokens import Tokens
from unsmooth.spec import Range

HISTOGRAM_BINS = 40
"""Bins of equal width over [−1, 1]."""


@with_checked_options
def cosine_histogram(
    x: Tensor | Tokens,
    mask: Tensor | None = None,
    *,
    absolute: bool = False,
    pairs: Annotated[int, Range(1)] = 2048,
    seed: int = 0,
) -> Tensor:
    r"""Share of the pairwise cosines of each sequence in 40 bins of equal width over [−1, 1].

    .. math:: h_k = \frac{1}{|P|} \bigl|\{ (i, j) \in P : \lfloor 20 (\hat x_i \cdot \hat x_j + 1) \rfloor = k \}\bigr|

    with the pairs P of `cosine_quantile`; a cosine of 1 falls into the last bin.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        absolute: Of |cosine| instead.
        pairs: The most pairs to look at.
        seed: Decides the draw.

    Returns:
        Shares (batch, 40) that sum to 1; NaN for a sequence with NaN or Inf in a real token.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]])  # cosines 0, -1, 0
        >>> histogram = cosine_histogram(x)[0]
        >>> histogram.nonzero().flatten(), histogram[[0, 20]]
        (tensor([ 0, 20]), tensor([0.3333, 0.6667]))
    """
    tokens = Tokens.of(x, mask)
    cosines_BP, drawn_B = sampled_cosines(tokens, pairs, seed)
    cosines_BP = cosines_BP.abs() if absolute else cosines_BP
    counted_BP = torch.arange(cosines_BP.shape[1], device=drawn_B.device) < drawn_B.unsqueeze(-1)
    # Rounding puts the cosine of equal tokens just below or above 1, and that of orthogonal ones next to 0.
    bin_BP = ((cosines_BP.nan_to_num(0.0) + 1.0 + 1e-6) * (HISTOGRAM_BINS / 2)).long().clamp(0, HISTOGRAM_BINS - 1)
    shares_BK = cosines_BP.new_zeros(cosines_BP.shape[0], HISTOGRAM_BINS)
    shares_BK.scatter_add_(1, bin_BP, counted_BP.to(cosines_BP.dtype))
    broken_B = ~tokens.norms_BN.sum(dim=1).isfinite()
    return (shares_BK / drawn_B.unsqueeze(-1)).masked_fill(broken_B.unsqueeze(-1), torch.nan)


def _bin_middles(count: int) -> list[float]:
    return [-1.0 + (2 * number + 1) / count for number in range(count)]


@metric(
    definition="median of x_i·x_j / (‖x_i‖‖x_j‖) over up to 2,048 pairs i < j of one sequence, drawn by a seed",
    paper="quantiles over sampled pairs are ours; papers plot the mean (see mean_cosine) or a histogram",
    cost="O(nd + pairs·d)",
    chance=lambda n, d: 0.0,
    chance_note="approximately 0 for independent isotropic tokens; q other than 0.5 moves with 1/√d",
    degenerate="single token 1; zero tokens count as cosine 0, so an all-zero sequence gives 0",
    rises_when_alike=True,
    # Permutation: as far as all pairs are looked at.
    invariances=("permutation", "rotation", "scale", "token_scale", "reflection"),
    profile=Profile(cosine_histogram, _bin_middles, "cosine", "share of the pairs of a sequence, mean over sequences"),
)
def cosine_quantile(
    x: Tensor | Tokens,
    mask: Tensor | None = None,
    *,
    q: Annotated[float, Range(0.0, 1.0)] = 0.5,
    absolute: bool = False,
    pairs: Annotated[int, Range(1)] = 2048,
    seed: int = 0,
) -> Tensor:
    r"""Quantile of the cosines between tokens of each sequence.

    .. math:: Q_q \{ \hat x_i \cdot \hat x_j : (i, j) \in P \}, \qquad \hat x_i = x_i / \lVert x_i \rVert

    where P are all pairs i < j if there are no more than `pairs` of them, and a draw of so many otherwise: one from
    each of so many equal stretches of the list of pairs. Between two cosines the quantile is linear, as in numpy.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.
        q: Which quantile, 0 to 1.
        absolute: Of |cosine| instead.
        pairs: The most pairs to look at.
        seed: Decides the draw, together with the number of tokens.

    Returns:
        One value per sequence (batch,). A single token gives 1. A zero token has cosine 0 with every token.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [1.0, 1.0]]])
        >>> cosine_quantile(x, q=0.0)  # cosines 0, -1, 0.707, 0, 0.707, -0.707
        tensor([-1.])
        >>> cosine_quantile(x)
        tensor([0.])
        >>> cosine_quantile(x, q=0.9)
        tensor([0.7071])
    """
    tokens = Tokens.of(x, mask)
    cosines_BP, drawn_B = sampled_cosines(tokens, pairs, seed)
    cosines_BP = cosines_BP.abs() if absolute else cosines_BP
    place_P = torch.arange(cosines_BP.shape[1], device=drawn_B.device)
    ordered_BP = cosines_BP.masked_fill(place_P >= drawn_B.unsqueeze(-1), torch.inf).sort(dim=1).values
    exact_B = q * (drawn_B - 1).double()
    below_B = exact_B.floor().long()
    above_B = torch.minimum(below_B + 1, drawn_B - 1)
    low, high = (ordered_BP.gather(1, index.unsqueeze(-1)).squeeze(-1) for index in (below_B, above_B))
    value = low + (exact_B - below_B).to(low.dtype) * (high - low)
    # A draw may miss the one token that is broken.
    return torch.where(tokens.norms_BN.sum(dim=1).isfinite(), value, torch.nan)
