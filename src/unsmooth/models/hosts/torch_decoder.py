"""torch.nn.TransformerDecoderLayer (Vaswani et al. 2017, arXiv 1706.03762): post- or pre-norm, with cross-attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from unsmooth.models.block_parts import optional, weight_at
from unsmooth.models.host import Cross, Host, Tap, register
from unsmooth.models.hosts.torch_encoder import batch_first, not_padding, plain_multihead, torch_encoder_wiring
from unsmooth.models.qkv_layouts import CONCATENATED, Heads, read_values
from unsmooth.models.value_projection import ValueProjection
from unsmooth.models.wiring import Wiring


def torch_decoder_taps(block: nn.Module) -> Mapping[str, Tap]:
    """`norm_first` decides whether the three norms stand before the branches or after the additions."""
    branches = {
        "attention": Tap("dropout1", "output"),
        "cross": Tap("dropout2", "output"),
        "mlp": Tap("dropout3", "output"),
    }
    if block.norm_first:
        return {"normed": Tap("norm1", "output"), "mid": Tap("norm3", "input"), **branches}
    return {"normed": Tap("self_attn", "input"), "mid": Tap("norm2", "output"), **branches}


def torch_decoder_wiring(block: nn.Module) -> Wiring:
    """As the encoder's; cross-attention and its norm are left alone."""
    return replace(torch_encoder_wiring(block), norms=("norm1", "norm3"))


def torch_decoder_cross_values(block: nn.Module) -> ValueProjection:
    """Its values are the memory as it is; only a norm after the addition is part of the branch's way."""
    attention = plain_multihead(block, "multihead_attn")
    return read_values(
        block,
        value=(
            weight_at(block, "multihead_attn.in_proj_weight").mT,
            optional(block, "multihead_attn", "in_proj_bias"),
        ),
        output="multihead_attn.out_proj",
        layout=CONCATENATED,
        heads=Heads(attention.num_heads, attention.num_heads, attention.head_dim),
        place="pre" if block.norm_first else "post",
        norm=None if block.norm_first else "norm2",
    )


def target_tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Read `tgt_key_padding_mask` (batch, tokens) in either of its forms."""
    mask: Tensor | None = args[4] if len(args) > 4 else kwargs.get("tgt_key_padding_mask")
    return None if mask is None else not_padding(mask)


register(
    Host(
        name="torch_decoder",
        # By its full name: many projects have a TransformerDecoderLayer of their own, laid out otherwise.
        blocks=("torch.nn.modules.transformer.TransformerDecoderLayer",),
        taps=torch_decoder_taps,
        example="torch.nn.TransformerDecoder, torch.nn.Transformer",
        batch_first=batch_first,
        real_tokens=target_tokens,
        wiring=torch_decoder_wiring,
        attention_module=lambda block: "self_attn",
        cross=Cross("multihead_attn", torch_decoder_cross_values),
    ),
)
