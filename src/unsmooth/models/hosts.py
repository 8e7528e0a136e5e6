"""Families of blocks by name, and what running a block does not tell of them.

Where their branches, norms and weights are is found by running them. What stands here is what no call of a block shows:
which tokens a model puts in front, what a batch calls its tokens, and a mask in a form of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.models.block_parts import declared, number
from unsmooth.models.host import IMAGE, TEXT, Host, Reads, register


def images(block: nn.Module) -> Reads:
    """Pixels."""
    return IMAGE


def tower_reads(block: nn.Module) -> Reads:
    """Pixels where the configuration of the tower is about images."""
    return IMAGE if hasattr(getattr(block.get_submodule("self_attn"), "config", None), "patch_size") else TEXT


def whisper_reads(block: nn.Module) -> Reads:
    """Sound for the encoder, two frames to a token; text for the decoder."""
    return TEXT if hasattr(block, "encoder_attn") else Reads("input_features", "attention_mask", each=2)


def one_token(model: nn.Module) -> int:
    """A class token."""
    return 1


def two_tokens(model: nn.Module) -> int:
    """A class token and one for distillation."""
    return 2


def class_tokens(model: nn.Module) -> int:
    """One where a part of the model has the class token's embedding."""
    return int(any(hasattr(module, "class_embedding") for module in model.modules()))


def class_and_registers(model: nn.Module) -> int:
    """The class token and the registers, which are as special: they hold nothing of one place of the image."""
    registers = (getattr(module, "register_tokens", None) for module in model.modules())
    return 1 + next((found.shape[1] for found in registers if isinstance(found, Tensor)), 0)


def timm_tokens(model: nn.Module) -> int:
    """As timm says."""
    return declared(model, "num_prefix_tokens")


def own_tokens(model: nn.Module) -> int:
    """As our own networks say."""
    return declared(model, "prefix_tokens")


def albert_depth(blocks: Mapping[str, nn.Module]) -> int:
    """Every group of blocks is called again and again."""
    block = next(iter(blocks.values()))
    return number(block, "attention.config.num_hidden_layers") * number(block, "attention.config.inner_group_num")


def swin_stage(path: str) -> int:
    """The second last number of a block's path.

    >>> swin_stage("swin.encoder.layers.2.blocks.5")
    2
    """
    return int(path.split(".")[-3])


def batch_first(block: nn.Module) -> bool:
    """Whether torch's layer takes (batch, tokens, dim); its default is (tokens, batch, dim)."""
    return bool(block.get_submodule("self_attn").batch_first)


def source_tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Read `src_key_padding_mask` (batch, tokens) of torch's layer."""
    mask: Tensor | None = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
    return None if mask is None else not_padding(mask)


def target_tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Read `tgt_key_padding_mask` (batch, tokens) of torch's layer."""
    mask: Tensor | None = args[4] if len(args) > 4 else kwargs.get("tgt_key_padding_mask")
    return None if mask is None else not_padding(mask)


def not_padding(key_padding_mask: Tensor) -> Tensor:
    """True = real, from torch's mask in either of its forms: True is padding, or -inf is."""
    if key_padding_mask.dtype == torch.bool:
        return ~key_padding_mask
    return key_padding_mask > torch.finfo(key_padding_mask.dtype).min


def own_mask(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Read the mask a block is handed: (batch, tokens), or (batch, 1, queries, keys), of which a token sees itself."""
    mask: Tensor | None = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    if mask is None or mask.ndim == 2:
        return mask
    return mask[:, 0, 0] if mask.shape[2] == 1 else mask[:, 0].diagonal(dim1=-2, dim2=-1)


_TORCH = "torch.nn.modules.transformer."
_OWN = ("unsmooth.networks.block.Block", "unsmooth.networks.relative.RelativeBlock")
# Full names where many projects have a block of that name.
for _host in (
    Host("albert", ("AlbertLayer",), "albert-base-v2", depth=albert_depth),
    Host("bert", ("BertLayer",), "bert-base-uncased, all-MiniLM-L6-v2"),
    Host("bloom", ("BloomBlock",), "bigscience/bloom-560m"),
    Host(
        "clip",
        ("CLIPEncoderLayer",),
        "openai/clip-vit-base-patch32, both towers",
        prefix_tokens=class_tokens,
        reads=tower_reads,
    ),
    Host("deberta_v2", ("DebertaV2Layer",), "microsoft/deberta-v3-base, microsoft/deberta-v2-xlarge"),
    Host("deit", ("DeiTLayer",), "facebook/deit-base-distilled-patch16-224", prefix_tokens=two_tokens, reads=images),
    Host(
        "dinov2",
        ("Dinov2Layer", "Dinov2WithRegistersLayer"),
        "facebook/dinov2-base, facebook/dinov2-with-registers-base",
        prefix_tokens=class_and_registers,
        reads=images,
    ),
    Host("falcon", ("FalconDecoderLayer",), "tiiuae/falcon-rw-1b, tiiuae/falcon-7b, tiiuae/falcon-40b"),
    Host(
        "gemma",
        ("GemmaDecoderLayer", "Gemma2DecoderLayer", "Gemma3DecoderLayer"),
        "google/gemma-2b, google/gemma-2-2b, google/gemma-3-270m",
    ),
    Host("gpt2", ("GPT2Block",), "gpt2, distilgpt2"),
    Host("gpt_neox", ("GPTNeoXLayer",), "EleutherAI/pythia-160m, EleutherAI/gpt-neox-20b"),
    Host("llama", ("LlamaDecoderLayer",), "meta-llama/Llama-3.2-1B, SmolLM2"),
    Host("mistral", ("MistralDecoderLayer",), "mistralai/Mistral-7B-v0.1"),
    Host("mixtral", ("MixtralDecoderLayer",), "mistralai/Mixtral-8x7B-v0.1"),
    Host("modernbert", ("ModernBertEncoderLayer",), "answerdotai/ModernBERT-base"),
    Host("mpnet", ("MPNetLayer",), "all-mpnet-base-v2"),
    Host(
        "own",
        _OWN,
        "unsmooth.networks: ViT, Encoder, Decoder; what `unsmooth train` writes",
        prefix_tokens=own_tokens,
        real_tokens=own_mask,
    ),
    Host("phi", ("PhiDecoderLayer",), "microsoft/phi-2"),
    Host("phi3", ("Phi3DecoderLayer",), "microsoft/Phi-3-mini-4k-instruct, microsoft/phi-4"),
    Host("qwen", ("Qwen2DecoderLayer", "Qwen3DecoderLayer"), "Qwen/Qwen2.5-0.5B, Qwen/Qwen3-0.6B"),
    Host(
        "roberta",
        ("RobertaLayer", "XLMRobertaLayer", "CamembertLayer"),
        "roberta-base, xlm-roberta-base, camembert-base",
    ),
    Host("siglip", ("SiglipEncoderLayer",), "google/siglip-base-patch16-224, both towers", reads=tower_reads),
    Host("swin", ("SwinLayer",), "microsoft/swin-tiny-patch4-window7-224", reads=images, stage=swin_stage),
    Host("t5", ("T5Block",), "google-t5/t5-small, google/flan-t5-base, encoder and decoder"),
    Host(
        "timm_vit",
        ("timm.models.vision_transformer.Block",),
        "timm's vit_base_patch16_224, deit_tiny_patch16_224",
        prefix_tokens=timm_tokens,
        reads=images,
    ),
    Host(
        "torch_decoder",
        (f"{_TORCH}TransformerDecoderLayer",),
        "torch.nn.TransformerDecoder, torch.nn.Transformer",
        batch_first=batch_first,
        real_tokens=target_tokens,
    ),
    Host(
        "torch_encoder",
        (f"{_TORCH}TransformerEncoderLayer",),
        "torch.nn.TransformerEncoder",
        batch_first=batch_first,
        real_tokens=source_tokens,
    ),
    Host("vit", ("ViTLayer",), "google/vit-base-patch16-224", prefix_tokens=one_token, reads=images),
    Host(
        "whisper",
        ("WhisperEncoderLayer", "WhisperDecoderLayer"),
        "openai/whisper-tiny, encoder and decoder",
        reads=whisper_reads,
    ),
):
    register(_host)
