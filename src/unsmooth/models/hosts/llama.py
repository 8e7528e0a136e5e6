"""Llama (Touvron et al. 2023, arXiv 2302.13971) and models built like it: pre-norm decoder with RMSNorm."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.qkv_layouts import SEPARATE, Heads
from unsmooth.models.wiring import Wiring


def llama_taps(block: nn.Module) -> Mapping[str, Tap]:
    """`post_attention_layernorm` is the MLP's input norm, despite its name."""
    return {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("self_attn", "output"),
        "mid": Tap("post_attention_layernorm", "input"),
        "mlp": Tap("mlp", "output"),
    }


def grouped_heads(block: nn.Module) -> Heads:
    """The heads that the attention module's configuration says it has."""
    return Heads(
        number(block, "self_attn.config.num_attention_heads"),
        number(block, "self_attn.config.num_key_value_heads"),
        number(block, "self_attn.head_dim"),
    )


def llama_wiring(block: nn.Module) -> Wiring:
    """Separate value weights; several query heads may read one value head."""
    return Wiring(
        style="pre",
        heads=grouped_heads(block),
        attention="self_attn",
        value="self_attn.v_proj",
        layout=SEPARATE,
        output="self_attn.o_proj",
        norms=("input_layernorm", "post_attention_layernorm"),
        mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    )


register(
    Host(
        name="llama",
        blocks=("LlamaDecoderLayer",),
        taps=llama_taps,
        example="meta-llama/Llama-3.2-1B, SmolLM2",
        wiring=llama_wiring,
        attention_module=lambda block: "self_attn",
    ),
)
