"""Hidden states as losses take them: checked once, in float32 or better, padding never read.

Shape suffixes: B sequences, N tokens (padded), D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional import Tokens
from unsmooth.functional._tokens import euclidean_norm, first_real, inverse
from unsmooth.spec import Range

Pooling: TypeAlias = Literal["first", "last", "mean"]
Positive: TypeAlias = Annotated[float, Range(0.0, above=True)]


def states(hidden: Tensor, mask: Tensor | None = None, *, at_least: int = 2, name: str = "hidden_BND") -> Tokens:
    """Hidden states (batch, tokens, dim); a matrix (rows, dim), such as word embeddings, is one sequence.

    A batch without sequences is refused as sequences without tokens are: a loss of 0 would say that all is well.
    """
    _check_one_layer(hidden, name)
    if hidden.ndim == 2:
        hidden, mask = hidden.unsqueeze(0), mask.unsqueeze(0) if isinstance(mask, Tensor) else mask
    tokens = Tokens(hidden, mask)
    batch, count = tokens.input_BND.shape[:2]
    if batch == 0:
        raise expected("at least one sequence", "an empty batch", "leaving it out")
    if count < at_least:
        raise expected(f"at least {at_least} tokens to compare", f"{count} in each sequence", "longer sequences")
    return tokens


def _check_one_layer(hidden: object, name: str) -> None:
    """Refuse what is no tensor, of whole numbers, or of all layers."""
    if isinstance(hidden, Tensor) and hidden.ndim <= 3:
        if hidden.is_floating_point():
            return
        raise expected(f"`{name}` of a floating type", hidden.dtype, f"{name}.float()")
    layers = isinstance(hidden, list | tuple | Mapping | Tensor)  # a mapping as transformers' models give
    hint = f"{'hidden_states[-1] for' if layers else 'torch.from_numpy(x) of an array;'} one layer of one pass"
    got = tuple(hidden.shape) if isinstance(hidden, Tensor) else type(hidden).__name__
    raise expected(f"`{name}` of shape (batch, tokens, dim)", got, hint)


def same_tokens(beside: Tensor, tokens: Tokens, name: str) -> Tokens:
    """Another layer of the same tokens."""
    shape = tuple(tokens.input_BND.shape)
    if isinstance(beside, Tensor) and beside.ndim == 2:
        beside = beside.unsqueeze(0)
    if not isinstance(beside, Tensor) or tuple(beside.shape) != shape:
        got = tuple(beside.shape) if isinstance(beside, Tensor) else type(beside).__name__
        raise expected(f"`{name}` of shape {shape}, as the hidden states", got, "two layers of one pass")
    _check_one_layer(beside, name)
    return Tokens(beside, tokens.mask_BN)


def mean_where(values_B: Tensor, counted_B: Tensor) -> Tensor:
    """Mean over the sequences that count; 0 where none does, and then with zero gradients."""
    kept = torch.where(counted_B, values_B, 0.0).sum()
    return kept / counted_B.sum().clamp_min(1).to(values_B.dtype)


def mean_of(tokens: Tokens) -> Tensor:
    """Mean over the real tokens (B, D), in float64: near collapse, means differ by less than the digits of float32."""
    return tokens.values_BND.sum(dim=1, dtype=torch.float64) / tokens.count_B.double().clamp_min(1.0).unsqueeze(-1)


def pooled(tokens: Tokens, pooling: Pooling) -> tuple[Tensor, Tensor]:
    """One vector per sequence (B, D), float64, and which sequences have any real token (B,)."""
    counted_B = tokens.count_B > 0
    if pooling == "mean":
        return mean_of(tokens), counted_B
    values_BND, mask_BN = tokens.values_BND, tokens.mask_BN
    if mask_BN is None:
        return values_BND[:, 0 if pooling == "first" else -1].double(), counted_B
    place_B = first_real(mask_BN) if pooling == "first" else mask_BN.shape[1] - 1 - first_real(mask_BN.flip(1))
    index_B1D = place_B[:, None, None].expand(-1, 1, tokens.dim)
    return values_BND.gather(1, index_B1D).squeeze(1).double(), counted_B


def two_views(
    hidden: Tensor, mask: Tensor | None, other: Tensor, other_mask: Tensor | None, pooling: Pooling
) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of the same sequences in two passes, both (B, D), and which have tokens in both (B,)."""
    for given in (hidden, other):
        if isinstance(given, Tensor) and given.ndim == 2:
            hint = "z.unsqueeze(1) for one vector of each sequence"
            raise expected("two views of shape (batch, tokens, dim)", tuple(given.shape), hint)
    first, second = states(hidden, mask, at_least=1), states(other, at_least=1, name="other_BND")
    shapes = [(one.input_BND.shape[0], one.dim) for one in (first, second)]
    if shapes[0] != shapes[1]:
        raise expected(f"`other_BND` of the same (batch, dim) = {shapes[0]}", shapes[1], "two passes over one batch")
    if shapes[0][0] < 2:
        raise expected("at least two sequences to compare", shapes[0][0], "a larger batch")
    second = Tokens(other, _mask_of_other(mask, other, other_mask))
    (one_BD, one_B), (two_BD, two_B) = pooled(first, pooling), pooled(second, pooling)
    return one_BD, two_BD, one_B & two_B


def _mask_of_other(mask: Tensor | None, other: Tensor, other_mask: Tensor | None) -> Tensor | None:
    """That of the other view; where none is given, that of the first, as both are of the same sequences."""
    if mask is None or other_mask is not None:
        return other_mask
    # Not as if all of its tokens were real: padding would be read.
    if mask.shape[1] != other.shape[1]:
        what = f"`other_mask_BN`, as views of {mask.shape[1]} and {other.shape[1]} tokens have no mask in common"
        raise expected(what, "none", "a boolean mask of other_BND, True = a real token")
    return mask


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1; zero stays zero, with a zero gradient. One too long to be measured is NaN."""
    return vectors * inverse(euclidean_norm(vectors)).unsqueeze(-1)
