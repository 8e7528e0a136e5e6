"""Making a block's inside reachable: torch's attention layer runs as one call, and feed-forwards may run in chunks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.errors import expected
from unsmooth.remedies.site import Site


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
