"""Where the values lie in a projection: alone, or fused with queries and keys in one of two ways.

Wrong slicing gives plausible numbers, so sizes that do not fit are refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.models.block_parts import Weights, linear_weights, norm_at, refuse
from unsmooth.models.value_projection import Norm, ValueProjection


@dataclass(frozen=True)
class Heads:
    """How many heads of queries and of keys and values, and how wide each is."""

    query: int
    key_value: int
    dim: int


@dataclass(frozen=True)
class Layout:
    """How the outputs of a projection are ordered.

    Args:
        name: In words, for messages.
        size: How many outputs such a projection has.
        values: Takes the values out of the last dimension: (..., size) to (..., key/value heads, head dim).
        queries: The same for queries, by the key/value head they read: (..., key/value heads, group, head dim); None
            where the projection has none.
        keys: The same for keys, as for values.
    """

    name: str
    size: Callable[[Heads], int]
    values: Callable[[Tensor, Heads], Tensor]
    queries: Callable[[Tensor, Heads], Tensor] | None = None
    keys: Callable[[Tensor, Heads], Tensor] | None = None


@dataclass(frozen=True)
class LatentParts:
    """Where the first half of value weights and the norm after it are.

    Args:
        down: Path of the linear map.
        start: The first of its columns that the norm reads.
        norm: Path of the norm, which the other half reads.
    """

    down: str
    start: int
    norm: str


@dataclass(frozen=True)
class GateParts:
    """Where the weights of a gate on the heads are.

    Args:
        linear: Path of the linear map of what attention reads.
        start: The column of the first head.
        step: Columns from one head to the next.
        width: Columns of a head: its width, or one for all of it.
        function: What is made of them, a name in `GATES`.
    """

    linear: str
    start: int
    step: int
    width: int
    function: str

    def columns(self, heads: int) -> Tensor:
        """The columns of each head (heads, width)."""
        return self.start + self.step * torch.arange(heads)[:, None] + torch.arange(self.width)


# Named functions, so that a model whose hooks know its layout can be pickled.
def size_of(size: int, heads: Heads) -> int:
    """Of a layout that was found in a projection of this size."""
    return size


def _size_alone(heads: Heads) -> int:
    return heads.key_value * heads.dim


def _size_together(heads: Heads) -> int:
    return (heads.query + 2 * heads.key_value) * heads.dim


def _all(x: Tensor, heads: Heads) -> Tensor:
    return torch.unflatten(x, -1, (heads.key_value, heads.dim))


def _at_the_end(x: Tensor, heads: Heads) -> Tensor:
    return _all(x[..., -heads.key_value * heads.dim :], heads)


def _last_of_each_group(x: Tensor, heads: Heads) -> Tensor:
    return _groups(x, heads)[..., -1, :]


def _groups(x: Tensor, heads: Heads) -> Tensor:
    return torch.unflatten(x, -1, (heads.key_value, -1, heads.dim))


def _at_the_start(x: Tensor, heads: Heads) -> Tensor:
    return _groups(x[..., : heads.query * heads.dim], heads)


def _in_the_middle(x: Tensor, heads: Heads) -> Tensor:
    return _all(x[..., heads.query * heads.dim : -heads.key_value * heads.dim], heads)


def _first_of_each_group(x: Tensor, heads: Heads) -> Tensor:
    return _groups(x, heads)[..., :-2, :]


def _second_last_of_each_group(x: Tensor, heads: Heads) -> Tensor:
    return _groups(x, heads)[..., -2, :]


SEPARATE = Layout("values alone", _size_alone, _all)
# With as many key heads as query heads this is [3, heads, head dim].
CONCATENATED = Layout(
    "all queries, then all keys, then all values", _size_together, _at_the_end, _at_the_start, _in_the_middle
)
# With as many key heads as query heads this is [heads, 3, head dim]; with one key head, multi-query attention.
BY_GROUP = Layout(
    "for each key/value head its queries, its key and its value",
    *(_size_together, _last_of_each_group, _first_of_each_group, _second_last_of_each_group),
)


def read_values(
    block: nn.Module,
    *,
    value: str | Weights,
    output: str,
    layout: Layout,
    heads: Heads,
    place: Literal["pre", "post"],
    norm: str | None,
    output_norm: str | None = None,
    gain: Tensor | None = None,
) -> ValueProjection:
    """Take value and output weights out of one block.

    Args:
        block: The block.
        value: Path of the projection that has the values in it, or its weight (in, out) and bias.
        output: Path of the projection back to the stream.
        layout: How the outputs of `value` are ordered.
        heads: The heads that the block says it has, checked against the sizes.
        place: Whether `norm` stands before the branch or after the addition.
        norm: Path of that norm; None where there is none that the values meet.
        output_norm: Path of a norm on the branch's output.
        gain: (d,) what the branch is multiplied by.
    """
    weight_DF, bias_F = linear_weights(block, value) if isinstance(value, str) else value
    weight_ED, b_o = linear_weights(block, output)
    _check_sizes(block, layout, heads, weight_DF, weight_ED)
    kv_of_head = torch.arange(heads.query, device=weight_DF.device) // (heads.query // heads.key_value)
    return ValueProjection(
        w_v=_per_query_head(layout.values(weight_DF, heads).movedim(1, 0), heads, kv_of_head),
        w_o=torch.unflatten(weight_ED, 0, (heads.query, heads.dim)),
        kv_of_head=kv_of_head,
        b_v=None if bias_F is None else _per_query_head(layout.values(bias_F, heads), heads, kv_of_head),
        b_o=b_o,
        place=place,
        norm=_norm_of(block, norm, weight_ED.shape[1]),
        output_norm=None if output_norm is None else norm_at(block, output_norm),
        gain=gain,
    )


def _per_query_head(x_G: Tensor, heads: Heads, kv_of_head: Tensor) -> Tensor:
    return x_G if heads.query == heads.key_value else x_G[kv_of_head]


def _check_sizes(block: nn.Module, layout: Layout, heads: Heads, weight_DF: Tensor, weight_ED: Tensor) -> None:
    if min(heads.query, heads.key_value, heads.dim) < 1 or heads.query % heads.key_value:
        got = f"{heads.query} query heads on {heads.key_value} key/value heads of width {heads.dim}"
        raise refuse(block, "a whole number of query heads to every key/value head", got)
    dim = weight_ED.shape[1]
    wanted = ((dim, layout.size(heads)), (heads.query * heads.dim, dim))
    found = (tuple(weight_DF.shape), tuple(weight_ED.shape))
    if found != wanted:
        what = f"{heads.query} query and {heads.key_value} key/value heads of width {heads.dim} ({layout.name})"
        sizes = "value projection {} and output projection {}".format
        raise refuse(block, f"{what}, so {sizes(*wanted)}", sizes(*found))


def _norm_of(block: nn.Module, path: str | None, dim: int) -> Norm:
    if path is None:
        return Norm("none", None, None, 0.0)
    norm = norm_at(block, path)
    if norm.weight is not None and norm.weight.shape != (dim,):
        raise refuse(block, f"a norm of {dim} features at {path!r}", f"shape {tuple(norm.weight.shape)}")
    return norm
