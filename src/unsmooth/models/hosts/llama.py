"""Llama (Touvron et al. 2023, arXiv 2302.13971) and models built like it: pre-norm decoder with RMSNorm."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.block_parts import number
from unsmooth.models.host import HOSTS, Host, Tap
from unsmooth.models.qkv_layouts import SEPARATE, Heads, read_values
from unsmooth.models.value_projection import ValueProjection


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


def llama_values(block: nn.Module, output_norm: str | None = None) -> ValueProjection:
    """Separate value weights; several query heads may read one value head."""
    return read_values(
        block,
        value="self_attn.v_proj",
        output="self_attn.o_proj",
        layout=SEPARATE,
        heads=grouped_heads(block),
        place="pre",
        norm="input_layernorm",
        output_norm=output_norm,
    )


HOSTS.add(
    "llama",
    Host(
        name="llama",
        blocks=("LlamaDecoderLayer", "MistralDecoderLayer"),
        taps=llama_taps,
        example="meta-llama/Llama-3.2-1B, SmolLM2, Mistral-7B",
        value_projection=llama_values,
        attention_module=lambda block: "self_attn",
    ),
)
