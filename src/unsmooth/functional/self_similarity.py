"""Self-similarity: how alike the vectors of one word are in different contexts."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from unsmooth.functional._metric import metric
from unsmooth.functional._occurrences import Occurrences
from unsmooth.functional._tokens import Tokens, euclidean_norm, inverse
from unsmooth.spec import Range


@metric(
    definition="mean over words met in at least 5 sequences of the mean cosine between the word's first vectors in two "
    "of them; a word is a token id",
    paper="Ethayarajh 2019 (arXiv 1909.00512), definition 1; kawine/contextual, analyze.py",
    cost="O(nd)",
    chance_note="none: at the embedding a word is the same everywhere; compare with random_pair_cosine, which the "
    "paper takes off it",
    degenerate="words in too few sequences do not count; zero vectors count as cosine 0",
    reads="words",
    differentiable=False,
    rises_when_alike=True,
)
def self_similarity(
    x: Tensor | Tokens | Occurrences,
    words: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    contexts: Annotated[int, Range(2)] = 5,
) -> Tensor:
    r"""Mean cosine between the vectors that each word has in different sequences.

    .. math:: \frac{1}{m(m-1)} \sum_{s \ne t} \cos(x_{w,s}, x_{w,t})

    where x_{w,s} is the vector of word w where it first occurs in sequence s, and m the number of sequences that have
    it (Ethayarajh 2019, arXiv 1909.00512). Two sequences of the same words are one context. The paper takes the value
    of `random_pair_cosine` off it, and keeps words in at least five contexts. Its words are whole words; here they are
    token ids, so pieces of words where a tokenizer splits them.

    Args:
        x: Token vectors (batch, tokens, dim), or the `Occurrences` of words.
        words: Integers (batch, tokens), equal where the word is.
        mask: Boolean (batch, tokens), True = a real token.
        contexts: How many sequences a word must be in.

    Returns:
        One value per word that is in enough sequences (words,), by their integers; empty where none is.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0], [5.0, 5.0]], [[0.0, 2.0], [1.0, 7.0]], [[3.0, 0.0], [8.0, 8.0]]])
        >>> words = torch.tensor([[7, 1], [7, 2], [7, 3]])
        >>> self_similarity(x, words, contexts=3)  # of word 7: cosines 0, 1, 0
        tensor([0.3333], dtype=torch.float64)
    """
    vectors_SD, word_S = Occurrences.of(x, words, mask).enough(contexts)
    count = int(word_S.max()) + 1 if len(word_S) else 0
    norms_S = euclidean_norm(vectors_SD)
    unit_SD = vectors_SD * inverse(norms_S).unsqueeze(-1)
    sums_WD = unit_SD.new_zeros(count, unit_SD.shape[1]).index_add(0, word_S, unit_SD)
    nonzero_W = norms_S.new_zeros(count).index_add(0, word_S, (norms_S != 0).double())
    met_W = torch.bincount(word_S, minlength=count).double()
    return (sums_WD.square().sum(dim=-1) - nonzero_W) / (met_W * (met_W - 1.0))
