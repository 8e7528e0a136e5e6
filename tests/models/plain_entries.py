"""Entries of Mistral, Mixtral, DeBERTa-v2 and DINOv2."""

from __future__ import annotations

from typing import Any

from tests.models.entry import SPECIAL, Entry, hf, images, texts

# The grouped product of experts has no float64, in which derivatives are checked.
EAGER = {"experts_implementation": "eager"}


def _mistral_like(name: str, variant: str, mlp: tuple[str, str], **options: Any) -> Entry:
    layer = "layers.{}"
    # A window of three tokens, shorter than the longest text.
    grouped = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 3}
    return Entry(
        name.lower(),
        variant,
        hf(name, **(grouped | SPECIAL | options)),
        style="pre",
        paths={
            "normed": (f"{layer}.self_attn.k_proj", "input"),
            "attention": (f"{layer}.self_attn.o_proj", "output"),
            "mid": (f"{layer}.post_attention_layernorm", "input"),
            "mlp": (f"{layer}.{mlp[0]}", mlp[1]),
        },
        norms=(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"),
        blocks=layer,
        stem=(layer.format(0), "input"),
        batch=texts,
    )


def _deberta_v2(variant: str, **options: Any) -> Entry:
    layer = "encoder.layer.{}"
    return Entry(
        "deberta_v2",
        variant,
        hf("DebertaV2", relative_attention=True, **options),
        style="post",
        paths={
            "normed": (f"{layer}.attention.self.value_proj", "input"),
            "attention": (f"{layer}.attention.output.dropout", "output"),
            "mid": (f"{layer}.intermediate.dense", "input"),
            "mlp": (f"{layer}.output.dropout", "output"),
        },
        norms=(f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"),
        blocks=layer,
        stem=("embeddings.dropout", "output"),
        batch=texts,
    )


def _dinov2(name: str, variant: str, prefix_tokens: int, **options: Any) -> Entry:
    layer = "encoder.layer.{}"
    return Entry(
        "dinov2",
        variant,
        hf(name, image_size=8, patch_size=4, mlp_ratio=2, layerscale_value=0.5, **options),
        style="pre",
        paths={
            "normed": (f"{layer}.attention.q_proj", "input"),
            "attention": (f"{layer}.layer_scale1", "output"),
            "mid": (f"{layer}.norm2", "input"),
            "mlp": (f"{layer}.layer_scale2", "output"),
        },
        norms=(f"{layer}.norm1", f"{layer}.norm2"),
        blocks=layer,
        stem=("embeddings", "output"),
        batch=images,
        paddings=("none",),
        prefix_tokens=prefix_tokens,
    )


# As in DeBERTa-v3: one embedding of distances for queries and keys, no positions in the stream.
V3: dict[str, Any] = {
    "pos_att_type": ["c2p", "p2c"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}

PLAIN = (
    _mistral_like("Mistral", "window", ("mlp.down_proj", "output")),
    _mistral_like("Mixtral", "experts", ("mlp", "output"), num_local_experts=4, num_experts_per_tok=2, **EAGER),
    _deberta_v2("v3", position_buckets=2, max_relative_positions=8, **V3),
    _deberta_v2("content-to-position", pos_att_type=["c2p"], max_relative_positions=4),
    _dinov2("Dinov2", "tiny", prefix_tokens=1),
    _dinov2("Dinov2", "gated", prefix_tokens=1, use_swiglu_ffn=True, drop_path_rate=0.2),
    _dinov2("Dinov2WithRegisters", "registers", prefix_tokens=4, num_register_tokens=3),
    _dinov2("Dinov2WithRegisters", "registers-gated", prefix_tokens=2, num_register_tokens=1, use_swiglu_ffn=True),
)
