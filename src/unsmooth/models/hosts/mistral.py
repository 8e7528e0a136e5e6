"""Mistral (Jiang et al. 2023, arXiv 2310.06825): Llama's block, grouped heads, a window on the past."""

from unsmooth.models.host import Host, register
from unsmooth.models.hosts.llama import llama_taps, llama_wiring

register(
    Host(
        name="mistral",
        blocks=("MistralDecoderLayer",),
        taps=llama_taps,
        example="mistralai/Mistral-7B-v0.1",
        wiring=llama_wiring,
        attention_module=lambda block: "self_attn",
    ),
)
