"""Attention maps made safe: shapes checked, at least float32, and which queries and keys are real.

Shape suffixes: B sequences, H heads, Q queries, K keys, N tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional._tokens import check_mask


def check_attention(attention: Tensor, mask: Tensor | None) -> None:
    """Refuse anything but floating (batch, heads, n, n) with a boolean (batch, n)."""
    if not isinstance(attention, Tensor) or attention.ndim != 4 or attention.shape[2] != attention.shape[3]:
        shape = tuple(attention.shape) if isinstance(attention, Tensor) else type(attention).__name__
        raise expected("`attention` of shape (batch, heads, n, n)", shape, "attention.unsqueeze(1) for one head")
    if not attention.is_floating_point():
        raise expected("`attention` of a floating type", attention.dtype, "attention.float()")
    if 0 in attention.shape[1:]:
        raise expected("`attention` with at least one head and one token", tuple(attention.shape), "a mask")
    if mask is not None:
        check_mask(mask, torch.Size((attention.shape[0], attention.shape[2])))


def real_tokens(attention: Tensor, mask: Tensor | None) -> Tensor:
    """The mask, or one that is all True (batch, n)."""
    if mask is not None:
        return mask
    return torch.ones(attention.shape[0], attention.shape[2], dtype=torch.bool, device=attention.device)


def visible_keys(values_BHQK: Tensor, real_BN: Tensor, causal: bool | None) -> Tensor:
    """How many real keys every query may see (batch, n).

    None for `causal` finds out per sequence: causal if no real query of any head attends to a later real key.
    """
    everything_BN = real_BN.sum(dim=1, keepdim=True).expand_as(real_BN)
    if causal is False:
        return everything_BN
    prefix_BN = real_BN.cumsum(dim=1)
    if causal:
        return prefix_BN
    looks_ahead_B = (values_BHQK.detach().triu(diagonal=1) != 0).flatten(1).any(dim=1)
    return torch.where(looks_ahead_B.unsqueeze(-1), everything_BN, prefix_BN)
