"""All pairs of tokens without ever holding all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

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


def over_rows(tokens_BND: Tensor, of_rows: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """What `of_rows` makes of the inner products of each token with all, a slice of rows at a time.

    Where gradients are wanted, the products of a slice are made again in the backward pass instead of being kept;
    `torch.func` cannot do that, and keeps them.

    Args:
        tokens_BND: Float64: autocast would do the products in bfloat16 and a GPU in TF32, both worth three digits.
        of_rows: Gets the products (batch, rows, tokens) and which rows they are; gives (batch, rows, …).

    Returns:
        (batch, tokens, …).

    >>> x = torch.tensor([[[1.0, 0.0], [2.0, 1.0]]])
    >>> over_rows(x, lambda products_BRN, rows: products_BRN.sum(dim=-1))  # 1 + 2, and 2 + 5
    tensor([[3., 7.]])
    """

    def part(tokens_BND: Tensor, rows: slice) -> Tensor:
        return of_rows(tokens_BND[:, rows] @ tokens_BND.mT, rows)

    slices = list(row_slices(tokens_BND))
    if len(slices) == 1 or not (torch.is_grad_enabled() and tokens_BND.requires_grad and _hooks_are_taken()):
        return torch.cat([part(tokens_BND, rows) for rows in slices], dim=1)
    made = [checkpoint(part, tokens_BND, rows, use_reentrant=False, preserve_rng_state=False) for rows in slices]
    return torch.cat(made, dim=1)


def _hooks_are_taken() -> bool:
    """Whether hooks may be put on what is saved for a backward pass; within `torch.func.grad` they may not."""
    if torch.compiler.is_dynamo_compiling():
        return True
    try:
        with torch.autograd.graph.saved_tensors_hooks(Tensor.detach, Tensor.detach):
            return True
    except RuntimeError:
        return False
