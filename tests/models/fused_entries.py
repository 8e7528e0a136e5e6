"""Entries of decoders that fuse queries, keys and values: Falcon in all its forms, BLOOM, Phi-3."""

from __future__ import annotations

from typing import Any

from tests.models.entry import SPECIAL, Entry, hf, texts


def _falcon(variant: str, norms: tuple[str, str], **options: Any) -> Entry:
    layer = "h.{}"
    parallel = "post_attention_layernorm" not in norms
    paths = {
        "normed": (f"{layer}.self_attention.query_key_value", "input"),
        "attention": (f"{layer}.self_attention.dense", "output"),
        "mlp": (f"{layer}.mlp.dense_4h_to_h", "output"),
    }
    if not parallel:
        paths["mid"] = (f"{layer}.post_attention_layernorm", "input")
    return Entry(
        "falcon",
        variant,
        hf("Falcon", parallel_attn=parallel, **(SPECIAL | options)),
        style="parallel" if parallel else "pre",
        paths=paths,
        norms=(f"{layer}.{norms[0]}", f"{layer}.{norms[1]}"),
        blocks=layer,
        stem=(layer.format(0), "input"),
        batch=texts,
    )


def _bloom() -> Entry:
    layer = "h.{}"
    return Entry(
        "bloom",
        "tiny",
        hf("Bloom", **SPECIAL),
        style="pre",
        paths={
            "normed": (f"{layer}.self_attention.query_key_value", "input"),
            "attention": (f"{layer}.self_attention.dense", "output"),
            "mid": (f"{layer}.self_attention", "output"),
            "mlp": (f"{layer}.mlp.dense_4h_to_h", "output"),
        },
        norms=(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"),
        blocks=layer,
        stem=("word_embeddings_layernorm", "output"),
        batch=texts,
    )


def _phi3() -> Entry:
    layer = "layers.{}"
    return Entry(
        "phi3",
        "grouped",
        hf("Phi3", num_attention_heads=4, num_key_value_heads=2, **SPECIAL),
        style="pre",
        paths={
            "normed": (f"{layer}.self_attn.qkv_proj", "input"),
            "attention": (f"{layer}.self_attn.o_proj", "output"),
            "mid": (f"{layer}.post_attention_layernorm", "input"),
            "mlp": (f"{layer}.mlp.down_proj", "output"),
        },
        norms=(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"),
        blocks=layer,
        stem=(layer.format(0), "input"),
        batch=texts,
    )


OLD: dict[str, Any] = {"new_decoder_architecture": False}
NEW: dict[str, Any] = {"new_decoder_architecture": True, "num_attention_heads": 4, "num_kv_heads": 2}
IN_TURN = ("input_layernorm", "post_attention_layernorm")
ONE_NORM = ("input_layernorm", "input_layernorm")

FUSED = (
    _falcon("alibi", IN_TURN, alibi=True, multi_query=False, bias=True, **OLD),
    _falcon("multi-query", ONE_NORM, multi_query=True, num_attention_heads=4, **OLD),
    _falcon("multi-head", ONE_NORM, multi_query=False, bias=True, **OLD),
    _falcon("grouped", ("ln_attn", "ln_mlp"), bias=True, **NEW),
    _falcon("grouped-one-norm", ONE_NORM, num_ln_in_parallel_attn=1, **NEW),
    _bloom(),
    _phi3(),
)
