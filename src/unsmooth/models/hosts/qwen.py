"""Qwen2 (arXiv 2407.10671) and Qwen3 (arXiv 2505.09388): Llama's blocks with query/key biases or norms."""

from unsmooth.models.host import Host, register
from unsmooth.models.hosts.llama import llama_taps, llama_wiring

register(
    Host(
        name="qwen",
        blocks=("Qwen2DecoderLayer", "Qwen3DecoderLayer"),
        taps=llama_taps,
        example="Qwen/Qwen2.5-0.5B, Qwen/Qwen3-0.6B",
        wiring=llama_wiring,
        attention_module=lambda block: "self_attn",
    ),
)
