"""GPT-NeoX (Black et al. 2022, arXiv 2204.06745) and Pythia: attention and MLP in parallel, or in turn."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import BY_GROUP, Heads
from unsmooth.models.wiring import Wiring


def gpt_neox_taps(block: nn.Module) -> Mapping[str, Tap]:
    """In a parallel block both branches read the same stream, so there is nothing between them."""
    taps = {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("post_attention_dropout", "output"),
        "mlp": Tap("post_mlp_dropout", "output"),
    }
    if not block.use_parallel_residual:
        taps["mid"] = Tap("post_attention_layernorm", "input")
    return taps


def gpt_neox_wiring(block: nn.Module) -> Wiring:
    """`query_key_value` has query, key and value of one head side by side."""
    heads = number(block, "attention.num_attention_heads", "attention.config.num_attention_heads")
    return Wiring(
        style="parallel" if block.use_parallel_residual else "pre",
        heads=Heads(heads, heads, number(block, "attention.head_size")),
        attention="attention",
        value="attention.query_key_value",
        layout=BY_GROUP,
        output="attention.dense",
        norms=("input_layernorm", "post_attention_layernorm"),
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    )


register(
    Host(
        name="gpt_neox",
        blocks=("GPTNeoXLayer",),
        taps=gpt_neox_taps,
        example="EleutherAI/pythia-160m, EleutherAI/gpt-neox-20b",
        wiring=gpt_neox_wiring,
        attention_module=lambda block: "attention",
    ),
)
