r"""Attention whose maps are mixed over heads: what talking heads and differential attention both are.

.. math:: \mathrm{out}_h = \Big(\sum_f W_{hf}\,\mathrm{softmax}\big(\textstyle\sum_g L_{fg}\,\ell_g\big) + b_h\Big) V_h

No fused attention of torch's can mix maps, and with plain operations they are formed, written and read by every one of
them. Where queries are on a GPU and the registers hold all heads that are mixed with each other
(four of 64), one kernel runs forward and two backward instead, and no map is formed. They are operators of torch's own
kind, which torch.compile leaves as they are and a CUDA graph can hold. Forward derivatives and second ones they have
none, as torch's fused attention: under ``sdpa_kernel(SDPBackend.MATH)`` plain operations run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unsmooth.remedies.mixing import Mix, by_query_head
from unsmooth.remedies.triton_here import HAS_TRITON

_TENSORS = "Tensor query, Tensor key, Tensor value"
_REST = "Tensor? before, Tensor after, Tensor? bias, Tensor? mask, bool causal, float scale, int parts"
_MADE = "Tensor, Tensor, Tensor"
# Of heads that are mixed with each other: how many, and how wide all together.
_MOST_HEADS, _MOST_WIDE = 4, 256


def mixed_maps(
    logits_BGNM: Tensor, seen: Tensor | None, before_GG: Tensor | None, after_HG: Tensor, bias_H: Tensor | None
) -> Tensor:
    """The maps (batch, heads, queries, keys), with plain operations; nothing where a query does not see a key.

    Args:
        logits_BGNM: One head's logits each.
        seen: Where a query sees a key, broadcastable to them; None for everywhere.
        before_GG: L, over logits; None for the identity.
        after_HG: W, over maps.
        bias_H: b, to all that is seen; None for none.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 30.0]]).view(1, 2, 1, 2)  # uniform, and the second key alone
        >>> mixed_maps(logits, None, None, torch.tensor([[1.0, -0.5]]), None).flatten()
        tensor([0.5000, 0.0000])
    """
    if before_GG is not None:
        logits_BGNM = over_heads(before_GG, logits_BGNM)
    if seen is not None:  # not -inf, of which a row that sees nothing would make NaN
        logits_BGNM = logits_BGNM.masked_fill(~seen, torch.finfo(logits_BGNM.dtype).min)
    exact = torch.promote_types(logits_BGNM.dtype, torch.float32)
    maps_BHNM = over_heads(after_HG, logits_BGNM.softmax(dim=-1, dtype=exact))
    if bias_H is not None:
        maps_BHNM = maps_BHNM + bias_H.to(exact).view(-1, 1, 1)
    return maps_BHNM if seen is None else maps_BHNM.masked_fill(~seen, 0.0)


def over_heads(weight_HG: Tensor, x_BGNM: Tensor) -> Tensor:
    """Every head the weighted sum of all.

    >>> over_heads(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([3.0, 4.0]).view(1, 2, 1, 1)).flatten()
    tensor([11.,  4.])
    """
    return torch.einsum("hg,bgnm->bhnm", weight_HG.to(x_BGNM.dtype), x_BGNM)


def may_fuse() -> bool:
    """Whether there are kernels, and nobody has asked torch for attention by plain operations."""
    fuses: Any = torch.backends.cuda
    # A compiler cannot look at these settings.
    may = torch.compiler.is_dynamo_compiling() or fuses.flash_sdp_enabled() or fuses.mem_efficient_sdp_enabled()
    return HAS_TRITON and bool(may)


def has_kernels(mix: Mix, parts: int = 1) -> bool:
    """Whether `mixed_by_kernels` is for this attention, in so many parts."""
    query, masking = mix.query, mix.masking()
    together = query.shape[1] if parts == 1 else parts
    return (
        may_fuse()
        and query.is_cuda
        and query.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and query.dtype == mix.key.dtype == mix.value.dtype
        and query.shape[3] == mix.value.shape[3]
        and together <= _MOST_HEADS
        and together * query.shape[3] <= _MOST_WIDE
        and mix.dropout == 0.0
        and masking is not None
        and _is_shared(masking[0])
    )


def _is_shared(mask: Tensor | None) -> bool:
    """Whether heads share it, and nobody learns it."""
    return mask is None or (not mask.requires_grad and (mask.ndim < 3 or mask.shape[-3] == 1))


def mixed_by_kernels(
    mix: Mix, after: Tensor, *, before: Tensor | None = None, bias: Tensor | None = None, parts: int = 1
) -> Tensor:
    """What the heads give, (batch, query heads, queries, head dim), where `has_kernels` says so.

    Args:
        mix: The host's attention.
        after: W. In one part (1, heads, heads); in parts (1 or heads, 1, parts), as maps are then mixed in a head only.
        before: L (heads, heads), in one part only.
        bias: b (heads), in one part only.
        parts: How many maps a head's queries and keys make. Part i has their coordinates i, i + parts, ..., and logits
            scaled by its own width.
    """
    masking = mix.masking()
    assert masking is not None, "as has_kernels says"
    mask, causal = masking
    mask = None if mask is None else mask[(None,) * (4 - mask.ndim)]
    heads = mix.query.shape[1]
    key, value = by_query_head(mix.key, heads), by_query_head(mix.value, heads)
    weights = [None if one is None else one.contiguous() for one in (before, after, bias)]
    out: Tensor = _attend(mix.query, key, value, *weights, mask, causal, mix.scale * parts**0.5, parts)[0]
    return out


def room_apart(query: Tensor, parts: int) -> Tensor:
    """For what the maps of a head in parts give; of whole heads there is nothing to keep."""
    batch, heads, queries, width = query.shape
    return query.new_empty((batch, heads, parts, queries, width) if parts > 1 else (0, 0, 0, 0, 0))


@torch.library.custom_op("unsmooth::mixed_heads", mutates_args=(), schema=f"({_TENSORS}, {_REST}) -> ({_MADE})")
def _attend(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    from unsmooth.remedies.mixed_heads_kernels import forward

    return forward(*given)


@torch.library.custom_op(
    "unsmooth::mixed_heads_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {_TENSORS}, Tensor lse, Tensor apart, {_REST}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _attend_backward(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from unsmooth.remedies.mixed_heads_kernels import backward

    return backward(*given)


@_attend.register_fake
def _attend_shapes(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, _ = query.shape
    lse = query.new_empty(batch, heads * rest[-1], queries, dtype=torch.float32)
    return torch.empty_like(query), lse, room_apart(query, rest[-1])


@_attend_backward.register_fake
def _attend_backward_shapes(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, lse: Tensor, apart: Tensor, before: Any, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    groups, heads, maps = rest[0].shape
    of_weights = lse.new_empty(groups, heads * maps + heads + maps * maps)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), of_weights


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.scale, ctx.parts = inputs
    ctx.save_for_backward(*tensors[:3], *output[1:], *tensors[3:])


def _backward(ctx: Any, grad: Tensor, *of_others: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    before, after, bias = saved[5:8]
    *of_tensors, of_weights = _attend_backward(grad.to(saved[0].dtype), *saved, ctx.causal, ctx.scale, ctx.parts)
    _, heads, maps = after.shape
    of_after, of_bias, of_before = of_weights.split([heads * maps, heads, maps * maps], dim=1)
    of_weights_each = (
        None if before is None else of_before.reshape(maps, maps).to(before.dtype),
        of_after.reshape(after.shape).to(after.dtype),
        None if bias is None else of_bias.reshape(heads).to(bias.dtype),
    )
    return (*of_tensors, *of_weights_each, None, None, None, None)


_attend.register_autograd(_backward, setup_context=_keep)
