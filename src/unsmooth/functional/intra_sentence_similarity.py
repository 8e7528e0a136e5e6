"""Intra-sentence similarity: how close the tokens of a sentence are to its mean."""

from __future__ import annotations

import math

from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._ratios import ratio
from unsmooth.functional._tokens import Tokens, euclidean_norm


@metric(
    definition="mean over tokens of the cosine between x_i and the mean token of its sequence",
    paper="Ethayarajh 2019 (arXiv 1909.00512), definition 2",
    cost="O(nd)",
    chance=lambda n, d: 1.0 / math.sqrt(n),
    chance_note="approximately 1/√n for independent isotropic tokens: a token is part of its own mean",
    degenerate="single token 1; zero tokens, and all tokens where their mean is zero, count as cosine 0",
    rises_when_alike=True,
    invariances=("permutation", "rotation", "scale", "reflection"),
)
def intra_sentence_similarity(x: Tensor | Tokens, mask: Tensor | None = None) -> Tensor:
    r"""Mean cosine between the tokens of each sequence and their mean.

    .. math:: \frac1n \sum_{i=1}^n \cos(x_i, \bar x), \qquad \bar x = \frac1n \sum_i x_i

    (Ethayarajh 2019, arXiv 1909.00512). The paper takes the value of `random_pair_cosine` off it, which says how
    alike tokens of different sentences are. Unlike `mean_cosine` it weighs tokens by their length, in the mean.

    Args:
        x: Token vectors (batch, tokens, dim).
        mask: Boolean (batch, tokens), True = a real token.

    Returns:
        One value in [−1, 1] per sequence (batch,). A single token gives 1, an all-zero or empty sequence 0.

    Example:
        >>> import torch
        >>> intra_sentence_similarity(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))  # both 45 degrees off
        tensor([0.7071])
    """
    tokens = Tokens.of(x, mask)
    along = (tokens.unit_sum_BD * tokens.mean_BD).sum(dim=-1)
    return ratio(along, tokens.count_B * euclidean_norm(tokens.mean_BD), otherwise=0.0).to(tokens.dtype)
