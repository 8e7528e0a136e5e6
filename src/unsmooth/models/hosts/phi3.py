"""Phi-3 (Abdin et al. 2024, arXiv 2404.14219): Llama's block with fused queries, keys and values."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import Host, Tap, register
from unsmooth.models.hosts.llama import grouped_heads
from unsmooth.models.qkv_layouts import CONCATENATED
from unsmooth.models.wiring import Wiring


def phi3_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Each branch ends in a dropout of its own."""
    return {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("resid_attn_dropout", "output"),
        "mid": Tap("post_attention_layernorm", "input"),
        "mlp": Tap("resid_mlp_dropout", "output"),
    }


def phi3_wiring(block: nn.Module) -> Wiring:
    """`qkv_proj` is all queries, then the keys and values, which may be fewer."""
    return Wiring(
        style="pre",
        heads=grouped_heads(block),
        attention="self_attn",
        value="self_attn.qkv_proj",
        layout=CONCATENATED,
        output="self_attn.o_proj",
        norms=("input_layernorm", "post_attention_layernorm"),
        mlp=("mlp.gate_up_proj", "mlp.down_proj"),
    )


register(
    Host(
        name="phi3",
        blocks=("Phi3DecoderLayer",),
        taps=phi3_taps,
        example="microsoft/Phi-3-mini-4k-instruct, microsoft/phi-4",
        wiring=phi3_wiring,
        attention_module=lambda block: "self_attn",
    ),
)
