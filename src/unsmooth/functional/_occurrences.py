"""The same word in many contexts.

Shape suffixes: B sequences, N tokens, S occurrences, W words, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional._tokens import Tokens
from unsmooth.keyed import keys, stream

_CONTEXT = stream(0, "context")


@dataclass(frozen=True)
class Occurrences:
    """Vectors of words, each word at most once per context.

    Args:
        vectors_SD: One vector per occurrence.
        words_S: Which word it is, as an integer.
    """

    vectors_SD: Tensor
    words_S: Tensor

    @classmethod
    def of(cls, x: Tensor | Tokens | Occurrences, words: Tensor | None, mask: Tensor | None) -> Occurrences:
        """The first occurrence of each word in each of the different sequences; an `Occurrences` as it is."""
        if isinstance(x, Occurrences):
            return x
        tokens = Tokens.of(x, mask)
        shape = tuple(tokens.input_BND.shape[:2])
        if words is None or words.is_floating_point() or tuple(words.shape) != shape:
            got = None if words is None else f"{words.dtype} of shape {tuple(words.shape)}"
            raise expected(f"`words` of integers of shape {shape}", got, "the token ids")
        found = find_occurrences(words, tokens.mask_BN)
        new_S = first_of_each(found.words_S, found.contexts_S)
        row_S, column_S = found.rows_S[new_S], found.columns_S[new_S]
        return cls(tokens.input_BND[row_S, column_S], found.words_S[new_S])

    def enough(self, contexts: int) -> tuple[Tensor, Tensor]:
        """The vectors in float64 of words met in at least so many contexts, and the number of each one's word.

        Words are numbered from 0 by their integers. What is NaN or Inf does not count.
        """
        vectors_SD = self.vectors_SD.double()
        finite_S = vectors_SD.isfinite().all(dim=-1)
        words_S = self.words_S[finite_S]
        _, number_S, count_W = torch.unique(words_S, return_inverse=True, return_counts=True)
        kept_S = count_W[number_S] >= contexts
        _, number_S = torch.unique(number_S[kept_S], return_inverse=True)
        return vectors_SD[finite_S][kept_S], number_S


@dataclass(frozen=True)
class Found:
    """Where the words of a batch are: the first time that each occurs in each sequence."""

    rows_S: Tensor
    columns_S: Tensor
    words_S: Tensor
    contexts_S: Tensor


def find_occurrences(words_BN: Tensor, mask_BN: Tensor | None) -> Found:
    """The first occurrence of each word in each sequence, and a number that names the sequence's content."""
    mask_BN = torch.ones_like(words_BN, dtype=torch.bool) if mask_BN is None else mask_BN
    row_S, column_S = mask_BN.nonzero(as_tuple=True)
    words_S = words_BN[row_S, column_S].long()
    first_S = first_of_each(row_S, words_S)
    row_S, column_S = row_S[first_S], column_S[first_S]
    return Found(row_S, column_S, words_S[first_S], content_keys(words_BN, mask_BN)[row_S])


def content_keys(words_BN: Tensor, mask_BN: Tensor) -> Tensor:
    """A number (batch,) for the words of each sequence and their order, whatever padding is around them."""
    position_BN = mask_BN.long().cumsum(dim=1)
    halves = [keys(_CONTEXT + half, position_BN, words_BN.long()) for half in range(2)]
    # Sums of 62 bits wrap around, the same on every machine.
    return torch.where(mask_BN, (halves[0] << 30) ^ halves[1], 0).sum(dim=1)


def first_of_each(one_S: Tensor, other_S: Tensor) -> Tensor:
    """Where each pair of numbers comes for the first time, in order.

    >>> first_of_each(torch.tensor([1, 1, 2, 1]), torch.tensor([5, 6, 5, 5]))
    tensor([0, 1, 2])
    """
    order_S = sorted_by(one_S, other_S)
    one_S, other_S = one_S[order_S], other_S[order_S]
    new_S = torch.ones_like(one_S, dtype=torch.bool)
    new_S[1:] = (one_S[1:] != one_S[:-1]) | (other_S[1:] != other_S[:-1])
    return order_S[new_S].sort().values


def sorted_by(*columns: Tensor) -> Tensor:
    """The order that sorts by the first column, then by the second and so on; equal ones stay as they are.

    >>> sorted_by(torch.tensor([2, 1, 1]), torch.tensor([0, 9, 8]))
    tensor([2, 1, 0])
    """
    order = columns[-1].argsort(stable=True)
    for column in reversed(columns[:-1]):
        order = order[column[order].argsort(stable=True)]
    return order
