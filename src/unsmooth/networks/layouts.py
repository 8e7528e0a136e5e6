"""Which weight of ours is which of theirs: the state of a network beside that of the same model in transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Form = Literal["same", "transposed", "patches"]


@dataclass(frozen=True)
class Pair:
    """One weight of ours.

    Args:
        ours: Its key.
        theirs: The key it has there; three where queries, keys and values are apart.
        form: "transposed" where it is stored the other way round, "patches" where it is a convolution there.
    """

    ours: str
    theirs: tuple[str, ...]
    form: Form = "same"


def _linear(ours: str, *theirs: str, form: Form = "same") -> list[Pair]:
    """A weight and its bias."""
    weight = Pair(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), form)
    return [weight, Pair(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))]


def vit(depth: int, state: Iterable[str]) -> list[Pair]:
    """ViTForImageClassification, whose names changed between versions of transformers."""
    newer = any(key.startswith("vit.layers.") for key in state)
    pairs = [
        Pair("class_token", ("vit.embeddings.cls_token",)),
        Pair("positions", ("vit.embeddings.position_embeddings",)),
        *_linear("patches", "vit.embeddings.patch_embeddings.projection", form="patches"),
        *_linear("norm", "vit.layernorm"),
        *_linear("head", "classifier"),
    ]
    for layer in range(depth):
        ours = f"stack.blocks.{layer}"
        theirs = f"vit.layers.{layer}" if newer else f"vit.encoder.layer.{layer}"
        inside = f"{theirs}.attention" if newer else f"{theirs}.attention.attention"
        names = ("q_proj", "k_proj", "v_proj") if newer else ("query", "key", "value")
        pairs += _linear(f"{ours}.attention.qkv", *(f"{inside}.{name}" for name in names))
        pairs += _linear(f"{ours}.attention.out", f"{theirs}.attention." + ("o_proj" if newer else "output.dense"))
        pairs += _linear(f"{ours}.norm_attention", f"{theirs}.layernorm_before")
        pairs += _linear(f"{ours}.norm_mlp", f"{theirs}.layernorm_after")
        pairs += _linear(f"{ours}.mlp.up", f"{theirs}." + ("mlp.fc1" if newer else "intermediate.dense"))
        pairs += _linear(f"{ours}.mlp.down", f"{theirs}." + ("mlp.fc2" if newer else "output.dense"))
    return pairs


def bert(depth: int, tied: bool) -> list[Pair]:
    """BertForMaskedLM, without the embeddings of token types."""
    pairs = [
        Pair("tokens.weight", ("bert.embeddings.word_embeddings.weight",)),
        Pair("positions.table", ("bert.embeddings.position_embeddings.weight",)),
        *_linear("embedding_norm", "bert.embeddings.LayerNorm"),
        *_linear("transform.linear", "cls.predictions.transform.dense"),
        *_linear("transform.norm", "cls.predictions.transform.LayerNorm"),
        Pair("head_bias", ("cls.predictions.decoder.bias",)),
        *([] if tied else [Pair("head_weight", ("cls.predictions.decoder.weight",))]),
    ]
    for layer in range(depth):
        ours, theirs = f"stack.blocks.{layer}", f"bert.encoder.layer.{layer}"
        names = (f"{theirs}.attention.self.{name}" for name in ("query", "key", "value"))
        pairs += _linear(f"{ours}.attention.qkv", *names)
        pairs += _linear(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
        pairs += _linear(f"{ours}.norm_attention", f"{theirs}.attention.output.LayerNorm")
        pairs += _linear(f"{ours}.mlp.up", f"{theirs}.intermediate.dense")
        pairs += _linear(f"{ours}.mlp.down", f"{theirs}.output.dense")
        pairs += _linear(f"{ours}.norm_mlp", f"{theirs}.output.LayerNorm")
    return pairs


def gpt2(depth: int, tied: bool) -> list[Pair]:
    """GPT2LMHeadModel, whose linear maps are stored (in, out)."""
    pairs = [
        Pair("tokens.weight", ("transformer.wte.weight",)),
        Pair("positions.table", ("transformer.wpe.weight",)),
        *_linear("norm", "transformer.ln_f"),
        *([] if tied else [Pair("head_weight", ("lm_head.weight",))]),
    ]
    for layer in range(depth):
        ours, theirs = f"stack.blocks.{layer}", f"transformer.h.{layer}"
        pairs += _linear(f"{ours}.norm_attention", f"{theirs}.ln_1")
        pairs += _linear(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", form="transposed")
        pairs += _linear(f"{ours}.attention.out", f"{theirs}.attn.c_proj", form="transposed")
        pairs += _linear(f"{ours}.norm_mlp", f"{theirs}.ln_2")
        pairs += _linear(f"{ours}.mlp.up", f"{theirs}.mlp.c_fc", form="transposed")
        pairs += _linear(f"{ours}.mlp.down", f"{theirs}.mlp.c_proj", form="transposed")
    return pairs


def to_theirs(pairs: list[Pair], ours: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state; biases that ours lacks are zeros, and what no pair names is zero too."""
    found = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    for pair in pairs:
        if pair.ours not in ours:
            continue
        weight = ours[pair.ours]
        if pair.form == "transposed":
            weight = weight.mT
        for name, part in zip(pair.theirs, weight.chunk(len(pair.theirs)), strict=True):
            found[name] = part.reshape(like[name].shape).clone()
    return found


def to_ours(pairs: list[Pair], theirs: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state, of the weights that `like` has."""
    found = {}
    for pair in pairs:
        if pair.ours not in like:
            continue
        weight = torch.cat([theirs[name] for name in pair.theirs])
        if pair.form == "transposed":
            weight = weight.mT
        found[pair.ours] = weight.reshape(like[pair.ours].shape).clone()
    return found
