"""GPT-NeoX (Black et al. 2022, arXiv 2204.06745) and Pythia: attention and MLP in parallel, or in turn."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.qkv_layouts import BY_GROUP, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


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


def gpt_neox_values(block: nn.Module) -> ValueProjection:
    """`query_key_value` has query, key and value of one head side by side."""
    heads = number(block, "attention.num_attention_heads", "attention.config.num_attention_heads")
    return read_values(
        block,
        value="attention.query_key_value",
        output="attention.dense",
        layout=BY_GROUP,
        heads=Heads(heads, heads, number(block, "attention.head_size")),
        place="pre",
        norm="input_layernorm",
    )


HOSTS.add(
    "gpt_neox",
    Host(
        name="gpt_neox",
        blocks=("GPTNeoXLayer",),
        taps=gpt_neox_taps,
        example="EleutherAI/pythia-160m, EleutherAI/gpt-neox-20b",
        value_projection=gpt_neox_values,
        attention_module=lambda block: "attention",
    ),
)
