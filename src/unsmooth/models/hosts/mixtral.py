"""Mixtral (Jiang et al. 2024, arXiv 2401.04088): Mistral's block with several experts in the place of the MLP.

The site "mlp" is what the experts that a router chose for a token give together, weighted as the router says.
"""

from torch import nn

from unsmooth.models.host import HOSTS, Host
from unsmooth.models.hosts.llama import grouped_heads, llama_taps
from unsmooth.models.qkv_layouts import SEPARATE, read_values
from unsmooth.models.value_projection import ValueProjection


def mixtral_values(block: nn.Module) -> ValueProjection:
    """Attention is Mistral's; there is no wiring, because experts are no chain of linear maps."""
    return read_values(
        block,
        value="self_attn.v_proj",
        output="self_attn.o_proj",
        layout=SEPARATE,
        heads=grouped_heads(block),
        place="pre",
        norm="input_layernorm",
    )


HOSTS.add(
    "mixtral",
    Host(
        name="mixtral",
        blocks=("MixtralDecoderLayer",),
        taps=llama_taps,
        example="mistralai/Mixtral-8x7B-v0.1",
        value_projection=mixtral_values,
        attention_module=lambda block: "self_attn",
    ),
)
