"""All pairs of tokens without ever holding all of them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

# Entries of the n×n matrices held at once: 2¹⁹ in float64 are 4 MB, which a cache holds.
_ENTRIES = 2**19


def row_slices(tokens_BND: Tensor) -> Iterator[slice]:
    """Slices of rows so that (batch, rows, tokens) stays small, however long the sequences are.

    >>> import torch
    >>> list(row_slices(torch.zeros(1, 3000, 2)))[:2]
    [slice(0, 174, None), slice(174, 348, None)]
    """
    batch, count, _ = tokens_BND.shape
    rows = max(1, _ENTRIES // max(1, batch * count))
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))
