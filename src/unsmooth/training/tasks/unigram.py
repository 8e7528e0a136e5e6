r"""The baseline that every learning curve of a text has to beat: how often each token is, and nothing else.

.. math:: p(t) = \frac{n_t + 1}{\sum_u (n_u + 1)}

with counts n of the training text, and one more for each token of the vocabulary, so that none is impossible.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.training.data.text import Tokens
from unsmooth.training.data.tokenizing import SPECIAL, BpeTokenizer, Tokenizer

_PIECE = 1 << 24


def unigram_nats(tokens: Tokens, vocabulary: int) -> Tensor:
    """−ln p of each token of the vocabulary, float64.

    >>> from unsmooth.training.data.text import held
    >>> import numpy
    >>> unigram_nats(held(numpy.array([0, 0, 0, 1])), 2).exp().round(decimals=3)  # 4/6 and 2/6
    tensor([1.5000, 3.0000], dtype=torch.float64)
    """
    counts = torch.ones(vocabulary, dtype=torch.float64)
    for start in range(0, len(tokens), _PIECE):
        counts += torch.bincount(tokens[start : start + _PIECE], minlength=vocabulary)
    return counts.sum().log() - counts.log()


def token_bytes(tokenizer: Tokenizer) -> Tensor:
    """How many bytes of text each token is, float64; a special one is none.

    >>> from unsmooth.training.data.tokenizing import ByteTokenizer
    >>> token_bytes(ByteTokenizer(special=True))[[0, 4, 5, 260]].tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    if isinstance(tokenizer, BpeTokenizer):
        # A byte-level BPE writes every byte as one sign.
        sizes = [len(tokenizer.inner.id_to_token(place) or "") for place in range(tokenizer.vocabulary)]
        found = torch.tensor(sizes, dtype=torch.float64)
    else:
        found = torch.ones(tokenizer.vocabulary, dtype=torch.float64)
    if tokenizer.special:
        found[: len(SPECIAL)] = 0
    return found
