"""One entry per host and variant: how to build it, feed it, and where its tensors are, by hand.

Nothing here is read from `unsmooth.models`: the paths are written out, and where the network allows it they
name other modules than the host does, so that an agreement means something.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.models.entry import DIM, LAYERS, SPECIAL, Entry, hf, images, texts, vectors
from tests.models.fused_entries import FUSED
from tests.models.own_entries import OWN
from tests.models.plain_entries import PLAIN
from tests.models.timm_entries import STAND_INS


def _bert_like(host: str, name: str, variant: str = "tiny", **options: Any) -> Entry:
    layer = "encoder.layer.{}"
    return Entry(
        host,
        variant,
        hf(name, **options),
        style="post",
        paths={
            "normed": (f"{layer}.attention.self.query", "input"),
            "attention": (f"{layer}.attention.output.dropout", "output"),
            "mid": (f"{layer}.intermediate.dense", "input"),
            "mlp": (f"{layer}.output.dropout", "output"),
        },
        norms=(f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"),
        blocks=layer,
        stem=("embeddings", "output"),
        batch=texts,
    )


def _albert(variant: str, groups: int, inner: int) -> Entry:
    layer = "encoder.albert_layer_groups.{}.albert_layers.{}"
    sharing = {"num_hidden_layers": 6, "num_hidden_groups": groups, "inner_group_num": inner}
    return Entry(
        "albert",
        variant,
        hf("Albert", embedding_size=8, **sharing),
        style="post",
        paths={
            "normed": (f"{layer}.attention.value", "input"),
            "attention": (f"{layer}.attention.output_dropout", "output"),
            "mid": (f"{layer}.attention.LayerNorm", "output"),
            "mlp": (f"{layer}.ffn_output", "output"),
        },
        norms=(f"{layer}.attention.LayerNorm", f"{layer}.full_layer_layer_norm"),
        blocks=layer,
        stem=("encoder.embedding_hidden_mapping_in", "output"),
        batch=texts,
        calls=6 * inner,
        # With two blocks in a group the model's own hidden states skip every other one.
        hidden_states=inner == 1,
    )


def _mpnet() -> Entry:
    layer = "encoder.layer.{}"
    return Entry(
        "mpnet",
        "tiny",
        hf("MPNet"),
        style="post",
        paths={
            "normed": (f"{layer}.attention.attn.k", "input"),
            "attention": (f"{layer}.attention.attn.o", "output"),
            "mid": (f"{layer}.attention.LayerNorm", "output"),
            "mlp": (f"{layer}.output.dropout", "output"),
        },
        norms=(f"{layer}.attention.LayerNorm", f"{layer}.output.LayerNorm"),
        blocks=layer,
        stem=("embeddings", "output"),
        batch=texts,
    )


def _modernbert() -> Entry:
    layer = "layers.{}"
    return Entry(
        "modernbert",
        "local",
        hf("ModernBert", global_attn_every_n_layers=2, local_attention=4, **SPECIAL),
        style="pre",
        paths={
            "normed": (f"{layer}.attn.Wqkv", "input"),
            "attention": (f"{layer}.attn.out_drop", "output"),
            "mid": (f"{layer}.mlp_norm", "input"),
            "mlp": (f"{layer}.mlp.Wo", "output"),
        },
        norms=(f"{layer}.attn_norm", f"{layer}.mlp_norm"),
        blocks=layer,
        stem=("embeddings", "output"),
        batch=texts,
    )


def _gpt2() -> Entry:
    return Entry(
        "gpt2",
        "tiny",
        hf("GPT2", **SPECIAL),
        style="pre",
        paths={
            "normed": ("h.{}.attn.c_attn", "input"),
            "attention": ("h.{}.attn.resid_dropout", "output"),
            "mid": ("h.{}.ln_2", "input"),
            "mlp": ("h.{}.mlp.dropout", "output"),
        },
        norms=("h.{}.ln_1", "h.{}.ln_2"),
        blocks="h.{}",
        stem=("drop", "output"),
        batch=texts,
    )


def _gpt_neox(variant: str, parallel: bool) -> Entry:
    layer = "layers.{}"
    paths = {
        "normed": (f"{layer}.attention.query_key_value", "input"),
        "attention": (f"{layer}.attention.dense", "output"),
        "mlp": (f"{layer}.mlp.dense_4h_to_h", "output"),
    }
    if not parallel:
        paths["mid"] = (f"{layer}.post_attention_layernorm", "input")
    return Entry(
        "gpt_neox",
        variant,
        hf("GPTNeoX", use_parallel_residual=parallel, **SPECIAL),
        style="parallel" if parallel else "pre",
        paths=paths,
        norms=(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"),
        blocks=layer,
        stem=("emb_dropout", "output"),
        batch=texts,
    )


def _phi() -> Entry:
    layer = "layers.{}"
    return Entry(
        "phi",
        "tiny",
        hf("Phi", **SPECIAL),
        style="parallel",
        paths={
            "normed": (f"{layer}.self_attn.q_proj", "input"),
            "attention": (f"{layer}.self_attn.dense", "output"),
            "mlp": (f"{layer}.mlp.fc2", "output"),
        },
        norms=(f"{layer}.input_layernorm", f"{layer}.input_layernorm"),
        blocks=layer,
        stem=("embed_dropout", "output"),
        batch=texts,
    )


def _llama_like(host: str, name: str, variant: str | None = None, **options: Any) -> Entry:
    layer = "layers.{}"
    return Entry(
        host,
        variant or name.lower(),
        hf(name, **({"num_key_value_heads": 1, "head_dim": 8} | SPECIAL | options)),
        style="pre",
        paths={
            "normed": (f"{layer}.self_attn.v_proj", "input"),
            "attention": (f"{layer}.self_attn.o_proj", "output"),
            "mid": (f"{layer}.post_attention_layernorm", "input"),
            "mlp": (f"{layer}.mlp.down_proj", "output"),
        },
        norms=(f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"),
        blocks=layer,
        stem=(layer.format(0), "input"),
        batch=texts,
    )


def _gemma_sandwich(name: str, variant: str) -> Entry:
    """Gemma 2 and 3 normalise what comes out of each branch, too."""
    layer = "layers.{}"
    options = {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4, **SPECIAL}
    options["layer_types"] = ["sliding_attention", "full_attention", "full_attention"]
    return Entry(
        "gemma",
        variant,
        hf(name, **options),
        style="pre",
        paths={
            "normed": (f"{layer}.self_attn.k_proj", "input"),
            "attention": (f"{layer}.post_attention_layernorm", "output"),
            "mid": (f"{layer}.pre_feedforward_layernorm", "input"),
            "mlp": (f"{layer}.post_feedforward_layernorm", "output"),
        },
        norms=(f"{layer}.input_layernorm", f"{layer}.pre_feedforward_layernorm"),
        blocks=layer,
        stem=(layer.format(0), "input"),
        batch=texts,
    )


def _vit_like(host: str, name: str, prefix_tokens: int) -> Entry:
    layer = "layers.{}"
    return Entry(
        host,
        "tiny",
        hf(name, image_size=8, patch_size=4),
        style="pre",
        paths={
            "normed": (f"{layer}.attention.q_proj", "input"),
            "attention": (f"{layer}.attention.o_proj", "output"),
            "mid": (f"{layer}.layernorm_after", "input"),
            "mlp": (f"{layer}.mlp.fc2", "output"),
        },
        norms=(f"{layer}.layernorm_before", f"{layer}.layernorm_after"),
        blocks=layer,
        stem=("embeddings", "output"),
        batch=images,
        paddings=("none",),
        prefix_tokens=prefix_tokens,
    )


def _torch_encoder(norm_first: bool, batch_first: bool, floating: bool) -> Entry:
    layer = "layers.{}"

    def build() -> nn.Module:
        block = nn.TransformerEncoderLayer(DIM, 2, 24, batch_first=batch_first, norm_first=norm_first)
        packs = batch_first and not norm_first
        return nn.TransformerEncoder(block, LAYERS, norm=nn.LayerNorm(DIM), enable_nested_tensor=packs)

    return Entry(
        "torch_encoder",
        f"{'pre' if norm_first else 'post'}-{'batch' if batch_first else 'tokens'}-first",
        build,
        style="pre" if norm_first else "post",
        paths={
            "normed": (f"{layer}.self_attn", "input"),
            "attention": (f"{layer}.self_attn", "output"),
            "mid": (f"{layer}.linear1", "input") if not norm_first else (f"{layer}.norm2", "input"),
            "mlp": (f"{layer}.linear2", "output"),
        },
        norms=(f"{layer}.norm1", f"{layer}.norm2"),
        blocks=layer,
        stem=(layer.format(0), "input"),
        batch=vectors(batch_first, floating),
        hidden_states=False,
        batch_first=batch_first,
    )


# Two key/value heads for four query heads, which are wider than the stream has room for.
GROUPED: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}

ENTRIES = (
    _bert_like("bert", "Bert"),
    _bert_like("bert", "Bert", "chunked", chunk_size_feed_forward=3),
    _bert_like("roberta", "Roberta"),
    _bert_like("roberta", "XLMRoberta", "xlm"),
    _bert_like("roberta", "Camembert", "camembert"),
    _albert("shared", groups=1, inner=1),
    _albert("groups", groups=3, inner=2),
    _mpnet(),
    _modernbert(),
    _gpt2(),
    _gpt_neox("parallel", parallel=True),
    _gpt_neox("sequential", parallel=False),
    _phi(),
    _llama_like("llama", "Llama"),
    _llama_like("llama", "Llama", "grouped", attention_bias=True, **GROUPED),
    _llama_like("qwen", "Qwen2"),
    _llama_like("qwen", "Qwen2", "qwen2-grouped", **GROUPED),
    _llama_like("qwen", "Qwen3"),
    _llama_like("qwen", "Qwen3", "qwen3-grouped", attention_bias=True, **GROUPED),
    _llama_like("gemma", "Gemma"),
    _gemma_sandwich("Gemma2", "gemma2"),
    _gemma_sandwich("Gemma3Text", "gemma3"),
    _vit_like("vit", "ViT", 1),
    _vit_like("deit", "DeiT", 2),
    _torch_encoder(norm_first=False, batch_first=True, floating=False),
    _torch_encoder(norm_first=True, batch_first=True, floating=True),
    _torch_encoder(norm_first=False, batch_first=False, floating=True),
    _torch_encoder(norm_first=True, batch_first=False, floating=False),
    *FUSED,
    *PLAIN,
    *STAND_INS,
    *OWN,
)
