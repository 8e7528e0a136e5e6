"""Gemma (arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786)."""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from unsmooth.models.block_parts import part
from unsmooth.models.host import Host, Tap, register
from unsmooth.models.hosts.llama import llama_taps, llama_wiring
from unsmooth.models.wiring import Wiring


def gemma_taps(block: nn.Module) -> Mapping[str, Tap]:
    """Gemma is laid out like Llama; 2 and 3 also normalise each branch's output before adding it."""
    if not hasattr(block, "pre_feedforward_layernorm"):
        return llama_taps(block)
    return {
        "normed": Tap("input_layernorm", "output"),
        "attention": Tap("post_attention_layernorm", "output"),
        "mid": Tap("pre_feedforward_layernorm", "input"),
        "mlp": Tap("post_feedforward_layernorm", "output"),
    }


def gemma_wiring(block: nn.Module) -> Wiring:
    """In Gemma 2 and 3 `post_attention_layernorm` is on the branch; in the first Gemma it is the MLP's."""
    if not hasattr(block, "pre_feedforward_layernorm"):
        return llama_wiring(block)
    return replace(
        llama_wiring(block),
        norms=("input_layernorm", "pre_feedforward_layernorm"),
        output_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        logit_scale=getattr(part(block, "self_attn"), "scaling", None),  # by a number of its own in the configuration
    )


register(
    Host(
        name="gemma",
        blocks=("GemmaDecoderLayer", "Gemma2DecoderLayer", "Gemma3DecoderLayer"),
        taps=gemma_taps,
        example="google/gemma-2b, google/gemma-2-2b, google/gemma-3-270m",
        wiring=gemma_wiring,
        attention_module=lambda block: "self_attn",
    ),
)
