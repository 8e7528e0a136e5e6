"""MPNet (Song et al. 2020, arXiv 2004.09297): post-norm like BERT, with relative position biases."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads
from unsmooth.models.wiring import Wiring


def mpnet_taps(block: nn.Module) -> Mapping[str, Tap]:
    """`attention.attn` is the branch with its projection; `attention` adds the stream and normalises."""
    return {
        "normed": Tap("attention.attn", "input"),
        "attention": Tap("attention.attn", "output"),
        "mid": Tap("attention", "output"),
        "mlp": Tap("output.dense", "output"),
    }


def mpnet_wiring(block: nn.Module) -> Wiring:
    """The relative positions are in the map, not in the values."""
    heads = number(block, "attention.attn.num_attention_heads")
    return Wiring(
        style="post",
        heads=Heads(heads, heads, number(block, "attention.attn.attention_head_size")),
        attention="attention.attn",
        value="attention.attn.v",
        layout=SEPARATE,
        output="attention.attn.o",
        norms=("attention.LayerNorm", "output.LayerNorm"),
        mlp=("intermediate.dense", "output.dense"),
    )


register(
    Host(
        name="mpnet",
        blocks=("MPNetLayer",),
        taps=mpnet_taps,
        example="all-mpnet-base-v2",
        wiring=mpnet_wiring,
        attention_module=lambda block: "attention.attn",
    ),
)
