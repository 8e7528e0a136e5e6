"""Mixtral (Jiang et al. 2024, arXiv 2401.04088): Mistral's block with several experts in the place of the MLP.

The site "mlp" is what the experts that a router chose for a token give together, weighted as the router says.
"""

from dataclasses import replace

from torch import nn

from unsmooth.models.host import Host, register
from unsmooth.models.hosts.llama import llama_taps, llama_wiring
from unsmooth.models.wiring import Wiring


def mixtral_wiring(block: nn.Module) -> Wiring:
    """Attention is Mistral's; all experts have their weights in two tensors."""
    return replace(llama_wiring(block), mlp=(), experts=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"))


register(
    Host(
        name="mixtral",
        blocks=("MixtralDecoderLayer",),
        taps=llama_taps,
        example="mistralai/Mixtral-8x7B-v0.1",
        wiring=mixtral_wiring,
        attention_module=lambda block: "self_attn",
    ),
)
