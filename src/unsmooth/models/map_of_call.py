"""The attention map that a torch function is about to make or use, in float32 or better."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_SOFTMAX = (nn.functional.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax)
_MAKERS = frozenset((nn.functional.scaled_dot_product_attention, nn.functional.multi_head_attention_forward, *_SOFTMAX))


def map_of_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """A new tensor (..., queries, keys), or None where the function has nothing to do with attention maps."""
    if function not in _MAKERS:
        return None
    device = next(item for item in (*args, *kwargs.values()) if isinstance(item, Tensor)).device.type
    # Autocast would bring the products here down to bfloat16.
    with torch.no_grad(), torch.autocast(device, enabled=False):
        if function is nn.functional.scaled_dot_product_attention:
            return scaled_dot_product_map(*args, **kwargs)
        if function is nn.functional.multi_head_attention_forward:
            return _multi_head_map(args, kwargs)
        return _softmax_map(*args, **kwargs)


def scaled_dot_product_map(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    r"""The map inside `torch.nn.functional.scaled_dot_product_attention`, whose arguments it takes.

    .. math:: A = \mathrm{softmax}(s\,Q K^\top + M)

    A query that may look at no key has a row of zeros, as in torch.

    >>> query = torch.zeros(1, 1, 2, 4)
    >>> scaled_dot_product_map(query, query, query, is_causal=True)[0, 0]  # equal scores: the mean of the past
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    query, key = _precise(query), _precise(key)
    if key.ndim > 2 and query.shape[-3] != key.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        mask = attn_mask.to(scores.device)
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return _rows_from(scores)


def _rows_from(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return scores.softmax(dim=-1).masked_fill(blind, 0.0)


def _softmax_map(input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Tensor | None:
    """Attention written out is a softmax over keys, the last of three or more dimensions."""
    if input.ndim < 3 or dim not in (-1, input.ndim - 1):
        return None
    return _rows_from(_precise(input))


def _multi_head_map(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Ask torch's own function for its weights, in a second call: what it calls inside cannot be seen."""
    given = multi_head_signature().bind(*args, **kwargs).arguments
    given = {name: _precise(item) if isinstance(item, Tensor) else item for name, item in given.items()}
    given |= {"need_weights": True, "average_attn_weights": False, "training": False}
    maps = nn.functional.multi_head_attention_forward(**given)[1]
    assert maps is not None  # because weights were asked for
    blind = maps.isnan().all(dim=-1, keepdim=True)
    if bool(blind.any()) and bool(given["query"].isfinite().all()):
        # Softmax of a row in which all is masked; torch's fused path has zeros there.
        maps = maps.masked_fill(blind, 0.0)
    return maps


@functools.cache
def multi_head_signature() -> inspect.Signature:
    """Of the function by which torch's own attention runs."""
    return inspect.signature(nn.functional.multi_head_attention_forward)


def _precise(tensor: Tensor) -> Tensor:
    """In float32 at least; masks of other kinds stay as they are."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
