"""torch.nn.TransformerEncoderLayer (Vaswani et al. 2017, arXiv 1706.03762): post-norm or pre-norm.

In eval mode without gradients torch runs such a layer as one fused call that has no inside to look at.
It does so only while the layer has no hooks: the hooks that watch it make it run module by module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.models.block_parts import part, refuse
from unsmooth.models.hooks import whole_sequences
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import CONCATENATED, Heads
from unsmooth.models.wiring import Wiring


def torch_encoder_taps(block: nn.Module) -> Mapping[str, Tap]:
    """`norm_first` decides whether the two norms stand before the branches or after the additions."""
    branches = {"attention": Tap("dropout1", "output"), "mlp": Tap("dropout2", "output")}
    if block.norm_first:
        return {"normed": Tap("norm1", "output"), "mid": Tap("norm2", "input"), **branches}
    return {"normed": Tap("self_attn", "input"), "mid": Tap("norm1", "output"), **branches}


def torch_encoder_wiring(block: nn.Module) -> Wiring:
    """nn.MultiheadAttention has queries, keys and values one after the other in `in_proj_weight`."""
    attention = plain_multihead(block, "self_attn")
    return Wiring(
        style="pre" if block.norm_first else "post",
        heads=Heads(attention.num_heads, attention.num_heads, attention.head_dim),
        attention="self_attn",
        value="self_attn",
        value_weight="in_proj_weight",
        value_bias="in_proj_bias",
        layout=CONCATENATED,
        output="self_attn.out_proj",
        norms=("norm1", "norm2"),
        mlp=("linear1", "linear2"),
        values_at="self_attn.values",
        heads_at="self_attn.heads",
        switch=("norm_first", True, False),
    )


def plain_multihead(block: nn.Module, path: str) -> nn.MultiheadAttention:
    """The nn.MultiheadAttention at `path`, where nothing in it but its two projections touches the values."""
    attention = part(block, path)
    if not isinstance(attention, nn.MultiheadAttention):
        raise refuse(block, f"an nn.MultiheadAttention at {path!r}", type(attention).__name__)
    if attention.in_proj_weight is None:
        raise refuse(block, "one in_proj_weight", "keys or values of another width than the queries")
    if attention.bias_k is not None or attention.add_zero_attn:
        raise refuse(block, "keys that are all tokens", "an extra key (add_bias_kv or add_zero_attn)")
    return attention


def batch_first(block: nn.Module) -> bool:
    """Whether the layer takes (batch, tokens, dim); torch's default is (tokens, batch, dim)."""
    return bool(block.get_submodule("self_attn").batch_first)


def real_tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Read `src_key_padding_mask` (batch, tokens): True is padding, or, in its float form, -inf is."""
    mask: Tensor | None = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
    return None if mask is None else not_padding(mask)


def not_padding(key_padding_mask: Tensor) -> Tensor:
    """True = real, from torch's mask in either of its forms."""
    if key_padding_mask.dtype == torch.bool:
        return ~key_padding_mask
    return key_padding_mask > torch.finfo(key_padding_mask.dtype).min


register(
    Host(
        name="torch_encoder",
        # By its full name: many projects have a TransformerEncoderLayer of their own, laid out otherwise.
        blocks=("torch.nn.modules.transformer.TransformerEncoderLayer",),
        taps=torch_encoder_taps,
        example="torch.nn.TransformerEncoder",
        batch_first=batch_first,
        real_tokens=real_tokens,
        prepare=whole_sequences,
        wiring=torch_encoder_wiring,
        attention_module=lambda block: "self_attn",
    ),
)
