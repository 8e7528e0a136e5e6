"""BLOOM (Le Scao et al. 2022, arXiv 2211.05100): pre-norm decoder with ALiBi instead of position embeddings."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number, refuse
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import BY_GROUP, Heads
from unsmooth.models.wiring import Wiring


def bloom_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Attention and MLP add the stream themselves, so the branches are taken at their last linear maps."""
    taps = {
        "normed": Tap("input_layernorm", "output"),
        "mid": Tap("post_attention_layernorm", "input"),
    }
    if not _in_slices(block):
        taps["attention"] = Tap("self_attention.dense", "output")
        taps["mlp"] = Tap("mlp.dense_4h_to_h", "output")
    return taps


def _in_slices(block: nn.Module) -> bool:
    """Whether the last linear maps are computed piece by piece, past their modules and without their biases."""
    sliced = number(block, "self_attention.slow_but_exact")
    return bool(sliced) and number(block, "self_attention.pretraining_tp") > 1


def bloom_wiring(block: nn.Module) -> Wiring:
    """`query_key_value` has query, key and value of one head side by side."""
    if _in_slices(block):
        raise refuse(block, "whole linear maps", "slow_but_exact with pretraining_tp > 1, which drops biases")
    if block.apply_residual_connection_post_layernorm:
        raise refuse(block, "a branch added to the stream", "one added to the normalised stream")
    heads = number(block, "self_attention.num_heads")
    return Wiring(
        style="pre",
        heads=Heads(heads, heads, number(block, "self_attention.head_dim")),
        attention="self_attention",
        value="self_attention.query_key_value",
        layout=BY_GROUP,
        output="self_attention.dense",
        norms=("input_layernorm", "post_attention_layernorm"),
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        causal=True,  # which its attention module does not say
        dropout="self_attention.hidden_dropout",
    )


register(
    Host(
        name="bloom",
        blocks=("BloomBlock",),
        taps=bloom_taps,
        example="bigscience/bloom-560m",
        wiring=bloom_wiring,
        attention_module=lambda block: "self_attention",
    ),
)
