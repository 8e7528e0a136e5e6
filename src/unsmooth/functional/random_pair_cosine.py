"""Random-pair cosine: how alike tokens are that have nothing to do with each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._tokens import Tokens


@dataclass(frozen=True)
class SequenceMeans:
    """Sums over sequences of their mean directions ū = (1/n) Σ_i x_i/‖x_i‖, in float64: all that the metric needs.

    Args:
        total_D: Σ_s ū_s.
        square: Σ_s ‖ū_s‖².
        count: Number of sequences.
    """

    total_D: Tensor
    square: Tensor
    count: Tensor

    @classmethod
    def of(cls, x: Tensor | Tokens | SequenceMeans, mask: Tensor | None = None) -> SequenceMeans:
        """The sums of a batch; a `SequenceMeans` as it is. Empty sequences do not count, nor those with NaN or Inf."""
        if isinstance(x, SequenceMeans):
            return x
        mean_BD = mean_directions(Tokens.of(x, mask))
        return cls.over(mean_BD[mean_BD.isfinite().all(dim=-1)])

    @classmethod
    def over(cls, mean_BD: Tensor) -> SequenceMeans:
        """The sums of mean directions."""
        count = torch.tensor(float(len(mean_BD)), dtype=torch.float64, device=mean_BD.device)
        return cls(mean_BD.sum(dim=0), mean_BD.square().sum(), count)

    def __add__(self, other: SequenceMeans) -> SequenceMeans:
        return SequenceMeans(self.total_D + other.total_D, self.square + other.square, self.count + other.count)


def mean_directions(tokens: Tokens) -> Tensor:
    """ū (batch, dim) in float64; NaN for an empty sequence."""
    count_B1 = tokens.count_B.double().unsqueeze(-1)
    return tokens.unit_sum_BD.double() / count_B1


@metric(
    definition="mean cosine of two tokens of two different sequences; sequences are drawn alike, then tokens in them",
    paper="Ethayarajh 2019 (arXiv 1909.00512), anisotropy baseline; kawine/contextual, analyze.py draws 1,000 words",
    cost="O(nd)",
    chance=lambda n, d: 0.0,
    chance_note="0 for independent isotropic tokens",
    degenerate="NaN for fewer than two sequences; zero tokens count as cosine 0",
    reads="sequences",
    rises_when_alike=True,
)
def random_pair_cosine(x: Tensor | Tokens | SequenceMeans, mask: Tensor | None = None) -> Tensor:
    r"""Mean cosine between tokens of different sequences, over all pairs instead of a draw of them.

    .. math:: \frac{1}{S(S-1)} \sum_{s \ne t} \bar u_s \cdot \bar u_t
              = \frac{\lVert \sum_s \bar u_s \rVert^2 - \sum_s \lVert \bar u_s \rVert^2}{S(S-1)},
              \qquad \bar u_s = \frac{1}{n_s} \sum_i \hat x_{si}

    Ethayarajh 2019 (arXiv 1909.00512) draws sentences, one word from each, and pairs of those; this is the mean over
    all that may be drawn, without the pairs of a word with itself that drawing with replacement gives. It is 0 where
    directions are spread evenly, and is taken off `self_similarity` and `intra_sentence_similarity` in the paper.

    Args:
        x: Token vectors (batch, tokens, dim), or the `SequenceMeans` of many batches.
        mask: Boolean (batch, tokens), True = a real token.

    Returns:
        One value for all sequences (), in float64; NaN for fewer than two. Sequences without tokens, or with NaN or Inf
        in them, do not count.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [3.0, 0.0]]])
        >>> random_pair_cosine(x)  # cosines 1, 1, 0, 0
        tensor(0.5000, dtype=torch.float64)
    """
    means = SequenceMeans.of(x, mask)
    together = means.total_D.square().sum() - means.square
    return torch.where(means.count > 1, together / (means.count * (means.count - 1.0)).clamp_min(1.0), torch.nan)
