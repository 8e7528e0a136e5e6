"""Attention's mixing as an edit meets it: the host's own attention, which may run again with other tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import expected
from unsmooth.remedies.call import LOWEST_SEEN

# Swin hides what a shifted window holds of elsewhere by -100, beside a learned bias of a few units.
LOWEST_SEEN_IN_WINDOWS = -50.0


class Mix:
    """The attention of one call. Called, it is what the host computes; with other tensors, what it would make of those.

    Args:
        query: (batch, query heads, tokens, head dim), positions rotated in where the host does so.
        key: (batch, key/value heads, keys, head dim), earlier tokens in the cache first.
        value: The same of values.
        scale: What logits are multiplied by, whatever the width of the queries.
        lowest_seen: A key is hidden where no more than this is added to its logits.
    """

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, lowest_seen: float = LOWEST_SEEN
    ) -> None:
        self.query, self.key, self.value, self.scale = query, key, value, scale
        self.lowest_seen = lowest_seen

    def __call__(
        self,
        *,
        query: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """What each head gives, (batch, query heads, tokens, width of the values), dropout of the host's included.

        Args:
            query: In place of the host's.
            key: In place of the host's, of its key/value heads or of as many as there are query heads.
            value: The same.
            bias: Added to the logits, broadcastable to (batch, query heads, tokens, keys); hidden keys stay hidden.
        """
        query = self.query if query is None else query
        key, value = self.key if key is None else key, self.value if value is None else value
        heads = self.query.shape[1]
        if key.shape[1] != value.shape[1]:  # one of them is of query heads
            key, value = by_query_head(key, heads), by_query_head(value, heads)
        return self._run(query, key, value, bias)

    def logits(self) -> tuple[Tensor, Tensor | None]:
        """The logits (batch, query heads, tokens, keys) before masking, and where a query sees a key (None: all)."""
        logits = self.query @ by_query_head(self.key, self.query.shape[1]).mT * self.scale
        mask = self._mask()
        if mask is None or mask.dtype == torch.bool:
            return logits, mask
        seen = mask > self.lowest_seen
        return logits + mask.masked_fill(~seen, 0.0), seen

    @property
    def dropout(self) -> float:
        """The share of the map's entries that the host drops in this call."""
        raise NotImplementedError

    def masking(self) -> tuple[Tensor | None, bool] | None:
        """The mask, and whether the future is hidden beside it.

        None where more than that and a softmax shapes the map, or where the host forms it and hands it on.
        """
        raise NotImplementedError

    def _run(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _mask(self) -> Tensor | None:
        """All that is added to the logits (or True where a query sees a key), the future included."""
        raise NotImplementedError

    def _with(self, bias: Tensor) -> Tensor:
        """The mask with a bias for what is seen."""
        mask, bias = self._mask(), bias.to(self.query.dtype)
        if mask is None:
            return bias
        if mask.dtype == torch.bool:  # not -inf, of which a row that sees nothing makes NaN in some kernels
            return torch.where(mask, bias, torch.finfo(bias.dtype).min)
        return torch.where(mask > self.lowest_seen, mask + bias, mask)

    def _causal_mask(self) -> Tensor:
        queries, keys = (torch.arange(x.shape[2], device=x.device) for x in (self.query, self.key))
        return (queries[:, None] >= keys)[None, None]


def by_query_head(x_BKME: Tensor, heads: int) -> Tensor:
    """Keys or values (batch, key/value heads, keys, dim) repeated so that each query head has its own.

    >>> by_query_head(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1), 4).flatten()
    tensor([1., 1., 2., 2.])
    """
    groups = heads // x_BKME.shape[1]
    return x_BKME if groups == 1 else x_BKME.repeat_interleave(groups, dim=1)


class TorchMix(Mix):
    """By torch's fused attention, or by another function that takes its arguments.

    Args:
        scale: What logits are multiplied by; None for torch's own.
        attend: The function.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        attend: Callable[..., Tensor] = F.scaled_dot_product_attention,
    ) -> None:
        super().__init__(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale)
        self._given, self._dropout, self._is_causal = attn_mask, dropout_p, is_causal
        self._given_scale, self._attend = scale, attend

    @property
    def dropout(self) -> float:
        """As the call says."""
        return self._dropout

    def masking(self) -> tuple[Tensor | None, bool] | None:
        """As the call says, where torch's fused attention runs."""
        return (self._given, self._is_causal) if self._attend is F.scaled_dot_product_attention else None

    def _run(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        mask = self._given if bias is None else self._with(bias)
        # Torch's own scale where it is the same, which it rounds in its own way.
        scale = self._given_scale if query.shape[-1] == self.query.shape[-1] else self.scale
        causal = self._is_causal and bias is None
        return self._attend(query, key, value, mask, self._dropout, causal, scale=scale)

    def _mask(self) -> Tensor | None:
        return self._causal_mask() if self._is_causal else self._given


class TransformersMix(Mix):
    """By an attention function of transformers.

    Args:
        module: The attention module that calls it.
        function: The function.
        fused: Whether it is one that hides the future by itself where it is given no mask.
        mask: What it is given to hide keys.
        told: All else that it is told.
        lowest_seen: As in `Mix`.
    """

    def __init__(
        self,
        module: nn.Module,
        function: Any,
        fused: bool,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        told: Mapping[str, Any],
        lowest_seen: float = LOWEST_SEEN,
    ) -> None:
        scale = told.get("scaling")
        super().__init__(*tensors, tensors[0].shape[-1] ** -0.5 if scale is None else float(scale), lowest_seen)
        self.module, self.function, self._fused, self._given, self.told = module, function, fused, mask, told
        # The map of the first run, where the function gives one.
        self.weights: Tensor | None = None

    @property
    def dropout(self) -> float:
        """As the function is told."""
        return float(self.told.get("dropout", 0.0))

    def masking(self) -> tuple[Tensor | None, bool] | None:
        """Where the function is a fused one and told nothing else of the map."""
        more = ("softcap", "s_aux", "position_bias", "sliding_window")
        if not self._fused or any(self.told.get(name) is not None for name in more):
            return None
        if isinstance(self._given, Tensor) and self._given.ndim == 4:
            return self._given, False
        return (None, self._hides_future()) if self._given is None else None

    def _run(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        module: Any = self.module
        if key.shape[1] == query.shape[1] != self.key.shape[1]:
            module = _Ungrouped(module)
        mask = self._given if bias is None else self._with(bias)
        # Told the scale only where the width no longer says it, or the function rounds it in its own way.
        scale = {} if query.shape[-1] == self.query.shape[-1] else {"scaling": self.scale}
        mixed_BNHE, weights = self.function(module, query, key, value, mask, **{**self.told, **scale})
        if self.weights is None:
            self.weights = weights
        mixed: Tensor = mixed_BNHE.transpose(1, 2)
        return mixed

    def logits(self) -> tuple[Tensor, Tensor | None]:
        """With what the function is told to add; refused where more than that shapes the map."""
        for name in ("softcap", "s_aux"):
            if self.told.get(name) is not None:
                raise expected("attention whose map is a softmax", f"one with {name!r}", "another model")
        logits, seen = super().logits()
        positions = self.told.get("position_bias")
        return logits if positions is None else logits + positions, seen

    def _mask(self) -> Tensor | None:
        if self._given is None:
            return self._causal_mask() if self._hides_future() else None
        if isinstance(self._given, Tensor) and self._given.ndim == 4:
            return self._given
        got = "a kernel that takes no such thing"
        raise expected("attention that adds to its logits", got, 'attn_implementation="sdpa" or "eager"')

    def _hides_future(self) -> bool:
        """Whether the function does so by itself, given no mask."""
        causal = self.told.get("is_causal")
        causal = getattr(self.module, "is_causal", True) if causal is None else causal
        return self._fused and bool(causal) and self.query.shape[2] > 1


class _Ungrouped:
    """An attention module in whose place keys and values are already there for every query head."""

    num_key_value_groups = 1

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
