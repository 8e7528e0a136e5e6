"""ALBERT (Lan et al. 2020, arXiv 1909.11942): post-norm, one block called again and again."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.hooks import whole_sequences
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads
from unsmooth.models.wiring import Wiring


def albert_taps(block: nn.Module) -> Mapping[str, Tap]:
    """The attention module adds the stream and normalises itself; the block does so for the MLP."""
    return {
        "normed": Tap("attention", "input"),
        "attention": Tap("attention.dense", "output"),
        "mid": Tap("attention", "output"),
        "mlp": Tap("ffn_output", "output"),
    }


def albert_wiring(block: nn.Module) -> Wiring:
    """One attention module holds all four projections and the norm after the addition."""
    heads = number(block, "attention.num_attention_heads")
    return Wiring(
        style="post",
        heads=Heads(heads, heads, number(block, "attention.attention_head_size")),
        attention="attention",
        value="attention.value",
        layout=SEPARATE,
        output="attention.dense",
        norms=("attention.LayerNorm", "full_layer_layer_norm"),
        mlp=("ffn", "ffn_output"),
    )


def albert_depth(blocks: Mapping[str, nn.Module]) -> int:
    """Every group of blocks is called again and again."""
    block = next(iter(blocks.values()))
    return number(block, "attention.config.num_hidden_layers") * number(block, "attention.config.inner_group_num")


register(
    Host(
        name="albert",
        blocks=("AlbertLayer",),
        taps=albert_taps,
        example="albert-base-v2",
        prepare=whole_sequences,
        wiring=albert_wiring,
        depth=albert_depth,
        attention_module=lambda block: "attention",
    ),
)
