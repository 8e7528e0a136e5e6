"""GPT-2 (Radford et al. 2019): pre-norm decoder."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import CONCATENATED, Heads
from unsmooth.models.wiring import Wiring


def gpt2_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Both branches end in their own dropout, inside `attn` and `mlp`."""
    return {
        "normed": Tap("ln_1", "output"),
        "attention": Tap("attn", "output"),
        "mid": Tap("ln_2", "input"),
        "mlp": Tap("mlp", "output"),
    }


def gpt2_wiring(block: nn.Module) -> Wiring:
    """`c_attn` is queries, keys, values, in a Conv1D, which stores (in, out)."""
    heads = number(block, "attn.num_heads")
    return Wiring(
        style="pre",
        heads=Heads(heads, heads, number(block, "attn.head_dim")),
        attention="attn",
        value="attn.c_attn",
        layout=CONCATENATED,
        output="attn.c_proj",
        norms=("ln_1", "ln_2"),
        mlp=("mlp.c_fc", "mlp.c_proj"),
    )


register(
    Host(
        name="gpt2",
        blocks=("GPT2Block",),
        taps=gpt2_taps,
        example="gpt2, distilgpt2",
        wiring=gpt2_wiring,
        attention_module=lambda block: "attn",
    ),
)
