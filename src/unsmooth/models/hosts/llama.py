"""Llama (Touvron et al. 2023, arXiv 2302.13971) and models built like it: pre-norm decoder with RMSNorm."""

from collections.abc import Mapping

from torch import nn

from unsmooth.models.host import HOSTS, Host, Tap


def llama_taps(block: nn.Module) -> Mapping[str, Tap]:
    """`post_attention_layernorm` is the MLP's input norm, despite its name."""
    return {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("self_attn", "output"),
        "mid": Tap("post_attention_layernorm", "input"),
        "mlp": Tap("mlp", "output"),
    }


HOSTS.add(
    "llama",
    Host(
        name="llama",
        blocks=("LlamaDecoderLayer", "MistralDecoderLayer"),
        taps=llama_taps,
        example="meta-llama/Llama-3.2-1B, SmolLM2, Mistral-7B",
    ),
)
