"""Maximum explainable variance: how well one fixed vector could stand for a word in all its contexts."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._occurrences import Occurrences
from unsmooth.functional._tokens import Tokens
from unsmooth.spec import Range


@metric(
    definition="mean over words met in at least 5 sequences of σ₁²/Σσ², σ the singular values of the word's first "
    "vectors in each of them, centred; a word is a token id",
    paper="Ethayarajh 2019 (arXiv 1909.00512), definition 3; kawine/contextual, analyze.py, which centres",
    cost="O(Σ md·min(m, d)) for words in m sequences, float64",
    chance_note="no closed form: at least 1/(m − 1) for a word in m sequences, so it falls as more text is read",
    degenerate="words in too few sequences do not count; 1 for a word whose vectors are all the same",
    reads="words",
    differentiable=False,
    rises_when_alike=None,
)
def maximum_explainable_variance(
    x: Tensor | Tokens | Occurrences,
    words: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    contexts: Annotated[int, Range(2)] = 5,
    centred: bool = True,
) -> Tensor:
    r"""Share of the variance of each word's vectors that their first principal component explains.

    .. math:: \frac{\sigma_1^2}{\sum_i \sigma_i^2}

    with the singular values of the matrix whose rows are the vectors of word w where it first occurs in each sequence.
    The formula of Ethayarajh 2019 (arXiv 1909.00512) takes the matrix as it is; the published code, kawine/contextual,
    takes principal components, which are centred.

    Args:
        x: Token vectors (batch, tokens, dim), or the `Occurrences` of words.
        words: Integers (batch, tokens), equal where the word is.
        mask: Boolean (batch, tokens), True = a real token.
        contexts: How many sequences a word must be in.
        centred: Take the mean over the word's vectors off them first.

    Returns:
        One value in (0, 1] per word that is in enough sequences (words,), by their integers; empty where none is.

    Example:
        >>> vectors = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-2.0, 0.0], [0.0, -1.0]])
        >>> maximum_explainable_variance(Occurrences(vectors, torch.full((4,), 7)), contexts=4)  # 8/(8 + 2)
        tensor([0.8000], dtype=torch.float64)
    """
    vectors_SD, word_S = Occurrences.of(x, words, mask).enough(contexts)
    count = int(word_S.max()) + 1 if len(word_S) else 0
    shares = [_first_share(vectors_SD[word_S == word], centred) for word in range(count)]
    return torch.stack(shares) if shares else vectors_SD.new_zeros(0)


def _first_share(vectors_MD: Tensor, centred: bool) -> Tensor:
    if centred:
        # From the first vector: the mean of equal numbers is rounded, and the share of that error would be a number.
        vectors_MD = vectors_MD - vectors_MD[:1]
        vectors_MD = vectors_MD - vectors_MD.mean(dim=0)
    rows, columns = vectors_MD.shape
    products = vectors_MD @ vectors_MD.T if rows < columns else vectors_MD.T @ vectors_MD
    variances = torch.linalg.eigvalsh(products).clamp_min(0.0)
    total = products.diagonal().sum()
    return torch.where(total > 0, variances[-1] / total, 1.0).clamp_max(1.0)
