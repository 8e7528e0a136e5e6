"""Making a block's inside reachable: torch's attention layer runs as one call, and feed-forwards may run in chunks.

timm's attention layer has modules for all but the mixing itself, so it is opened for an edit of that only.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import expected
from unsmooth.remedies.extending import extend, shrink
from unsmooth.remedies.site import Site

# Where timm has its attention layer, now and in older versions.
_TIMM = ("timm.layers.attention", "timm.models.vision_transformer")
# All that its forward reads and calls. One with another word in it may do anything else.
_TIMM_WORDS = frozenset(
    (
        *("qkv", "q_norm", "k_norm", "attn_drop", "p", "training", "norm", "gate", "proj", "proj_drop"),
        *("num_heads", "head_dim", "attn_dim", "scale", "fused_attn", "F", "scaled_dot_product_attention"),
        *("shape", "reshape", "permute", "unbind", "transpose", "softmax", "sigmoid"),
        *("resolve_self_attn_mask", "maybe_add_mask"),
    )
)


class OpenAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention step by step, so that its values and heads pass through modules that can be hooked.

    Same operations in the same order as torch's own slow path, so its results are the same to the bit.
    """

    values: nn.Module
    heads: nn.Module
    mix = staticmethod(F.scaled_dot_product_attention)  # an edit of attention's mixing stands in its place

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's, for self-attention."""
        if query is not key or query is not value:
            raise expected("self-attention", "queries, keys and values that differ", "another module")
        if need_weights:
            raise expected("need_weights=False", "True", "unsmooth.models.watch_attention for the maps")
        x_NBD = query.transpose(0, 1) if self.batch_first else query
        tokens, batch, dim = x_NBD.shape
        made = F.linear(x_NBD, self.in_proj_weight, self.in_proj_bias)
        made = torch.unflatten(made, -1, (3, dim)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
        values_NBD = self.values(made[2].transpose(0, 1)).transpose(0, 1)
        q, k, v = (self._split(part, tokens, batch) for part in (made[0], made[1], values_NBD))
        mask = _mask(key_padding_mask, attn_mask, q.dtype)
        if is_causal and key_padding_mask is None:
            mask = None  # torch takes the hint for the mask, so that a fused kernel can
        mixed = self.mix(q, k, v, mask, self.dropout if self.training else 0.0, is_causal and mask is None)
        heads_BNM = mixed.transpose(1, 2).flatten(2)
        heads_NBM = self.heads(heads_BNM).transpose(0, 1).contiguous()
        out_NBD = F.linear(heads_NBM.view(tokens * batch, -1), self.out_proj.weight, self.out_proj.bias)
        out_NBD = out_NBD.view(tokens, batch, -1)
        return (out_NBD.transpose(0, 1) if self.batch_first else out_NBD), None

    def _split(self, x_NBD: Tensor, tokens: int, batch: int) -> Tensor:
        heads = x_NBD.contiguous().view(tokens, batch * self.num_heads, self.head_dim).transpose(0, 1)
        return heads.view(batch, self.num_heads, tokens, self.head_dim)


def _mask(key_padding_mask: Tensor | None, attn_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Both masks added up, as numbers to add to the logits."""
    together = None
    if attn_mask is not None:
        together = _additive(attn_mask, dtype)
        together = together.unsqueeze(0).unsqueeze(0) if together.ndim == 2 else together
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, dtype)[:, None, None]
        if together is not None and together.ndim == 3:  # (batch · heads, queries, keys)
            together = together.view(padding.shape[0], -1, *together.shape[1:])
        together = padding if together is None else together + padding
    return together


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


def open_up(site: Site, stack: nn.Module) -> dict[str, object]:
    """Make the inside of a block reachable. Returns what `close_up` needs to undo it."""
    before: dict[str, object] = {}
    attention = site.block.get_submodule(site.wiring.attention)
    if type(attention) is nn.MultiheadAttention:
        attention.__class__ = OpenAttention
        attention.values, attention.heads = nn.Identity(), nn.Identity()
        before["attention"] = nn.MultiheadAttention
    for name, of in (("chunk_size_feed_forward", site.block), ("use_nested_tensor", stack)):
        # In chunks an MLP never sees a whole sequence; packed, a stack hands on nested tensors.
        if getattr(of, name, None):
            before[name] = getattr(of, name)
            setattr(of, name, 0 if name.startswith("chunk") else False)
    return before


def close_up(site: Site, stack: nn.Module, before: dict[str, object]) -> None:
    """Undo `open_up`."""
    if "attention" in before:
        attention = site.block.get_submodule(site.wiring.attention)
        del attention.values, attention.heads
        attention.__class__ = before["attention"]  # type: ignore[assignment]
    for name, of in (("chunk_size_feed_forward", site.block), ("use_nested_tensor", stack)):
        if name in before:
            setattr(of, name, before[name])


def is_timm_attention(attention: nn.Module) -> bool:
    """Whether it is timm's Attention and runs as that does, so that `open_timm_attention` is for it.

    Many have put a forward of their own into its place, in the class or in one module.
    """
    kind = type(attention)
    home, forward = kind.__module__, inspect.unwrap(kind.forward)
    if home not in _TIMM or kind.__qualname__ != "Attention" or "forward" in vars(attention):
        return False
    if (forward.__module__, forward.__qualname__) != (home, "Attention.forward"):
        return False
    return set(forward.__code__.co_names) <= _TIMM_WORDS and getattr(attention, "gate", None) is None


def open_timm_attention(attention: nn.Module, mix: Any) -> None:
    """Have timm's Attention call `mix` with the arguments of torch's fused attention, and the function it would run."""
    extend(attention, _opened_timm, "mix")
    attention.mix = mix


def close_timm_attention(attention: nn.Module) -> None:
    """Undo `open_timm_attention`."""
    del attention.mix
    shrink(attention)


def is_open_timm_attention(attention: nn.Module) -> bool:
    """Whether `open_timm_attention` has been here."""
    return vars(type(attention)).get("forward") is _timm_forward


def _opened_timm(text: str) -> dict[str, Any]:
    return {"forward": _timm_forward, "in_steps": _timm_in_steps}


def _timm_forward(self: Any, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """As timm's: the same operations in the same order, so its results are the same to the bit."""
    made_3BHNE = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
    query, key, value = made_3BHNE.unbind(0)
    query, key = self.q_norm(query), self.k_norm(key)
    # The scale is torch's own where torch's attention runs, and the module's where it does not.
    how: dict[str, Any] = {} if self.fused_attn else {"scale": self.scale, "attend": self.in_steps}
    dropout = self.attn_drop.p if self.training else 0.0
    mixed_BHNE = self.mix(query, key, value, attn_mask, dropout, is_causal, **how)
    heads_BNM = mixed_BHNE.transpose(1, 2).flatten(2)
    if "norm" in self._modules:  # older versions have none
        heads_BNM = self.norm(heads_BNM)
    out: Tensor = self.proj_drop(self.proj(heads_BNM))
    return out


def _timm_in_steps(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Attention as timm runs it with `fused_attn` off; its own module drops, so that who hooks it sees the map."""
    logits = (query * scale) @ key.mT
    if is_causal:  # then timm reads no mask
        attn_mask = logits.new_ones(logits.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        says_who = attn_mask.dtype == torch.bool
        logits = logits.masked_fill(~attn_mask, float("-inf")) if says_who else logits + attn_mask
    mixed: Tensor = self.attn_drop(logits.softmax(dim=-1)) @ value
    return mixed
