"""GPT-2 (Radford et al. 2019): pre-norm decoder."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.qkv_layouts import CONCATENATED, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


def gpt2_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Both branches end in their own dropout, inside `attn` and `mlp`."""
    return {
        "normed": Tap("ln_1", "output"),
        "attention": Tap("attn", "output"),
        "mid": Tap("ln_2", "input"),
        "mlp": Tap("mlp", "output"),
    }


def gpt2_values(block: nn.Module) -> ValueProjection:
    """`c_attn` is queries, keys, values, in a Conv1D, which stores (in, out)."""
    heads = number(block, "attn.num_heads")
    return read_values(
        block,
        value="attn.c_attn",
        output="attn.c_proj",
        layout=CONCATENATED,
        heads=Heads(heads, heads, number(block, "attn.head_dim")),
        place="pre",
        norm="ln_1",
    )


HOSTS.add(
    "gpt2",
    Host(
        name="gpt2",
        blocks=("GPT2Block",),
        taps=gpt2_taps,
        example="gpt2, distilgpt2",
        value_projection=gpt2_values,
        attention_module=lambda block: "attn",
    ),
)
