"""MPNet (Song et al. 2020, arXiv 2004.09297): post-norm like BERT, with relative position biases."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


def mpnet_taps(block: nn.Module) -> Mapping[str, Tap]:
    """`attention.attn` is the branch with its projection; `attention` adds the stream and normalises."""
    return {
        "normed": Tap("attention.attn", "input"),
        "attention": Tap("attention.attn", "output"),
        "mid": Tap("attention", "output"),
        "mlp": Tap("output.dense", "output"),
    }


def mpnet_values(block: nn.Module) -> ValueProjection:
    """The relative positions are in the map, not in the values."""
    heads = number(block, "attention.attn.num_attention_heads")
    return read_values(
        block,
        value="attention.attn.v",
        output="attention.attn.o",
        layout=SEPARATE,
        heads=Heads(heads, heads, number(block, "attention.attn.attention_head_size")),
        place="post",
        norm="attention.LayerNorm",
    )


HOSTS.add(
    "mpnet",
    Host(
        name="mpnet",
        blocks=("MPNetLayer",),
        taps=mpnet_taps,
        example="all-mpnet-base-v2",
        value_projection=mpnet_values,
        attention_module=lambda block: "attention.attn",
    ),
)
