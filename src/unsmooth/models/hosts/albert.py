"""ALBERT (Lan et al. 2020, arXiv 1909.11942): post-norm, one block called again and again."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.hosts.bert import whole_feed_forward
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


def albert_taps(block: nn.Module) -> Mapping[str, Tap]:
    """The attention module adds the stream and normalises itself; the block does so for the MLP."""
    return {
        "normed": Tap("attention", "input"),
        "attention": Tap("attention.dense", "output"),
        "mid": Tap("attention", "output"),
        "mlp": Tap("ffn_output", "output"),
    }


def albert_values(block: nn.Module) -> ValueProjection:
    """One attention module holds all four projections and the norm after the addition."""
    heads = number(block, "attention.num_attention_heads")
    return read_values(
        block,
        value="attention.value",
        output="attention.dense",
        layout=SEPARATE,
        heads=Heads(heads, heads, number(block, "attention.attention_head_size")),
        place="post",
        norm="attention.LayerNorm",
    )


HOSTS.add(
    "albert",
    Host(
        name="albert",
        blocks=("AlbertLayer",),
        taps=albert_taps,
        example="albert-base-v2",
        prepare=whole_feed_forward,
        value_projection=albert_values,
        attention_module=lambda block: "attention",
    ),
)
