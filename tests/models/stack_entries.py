"""One entry per model whose depth is not one plain list of blocks: several stacks, or one in stages.

As in `entries`, paths are written out by hand and name other modules than the host does where the network allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

from tests.models.entry import DIM, SPECIAL, VOCAB

BATCH = 3
# Texts and targets are padded differently, and differ in width.
SOURCE, TARGET = (6, 4, 2), (2, 5, 3)


@dataclass(frozen=True)
class Stack:
    """One stack of an entry's model.

    Args:
        host: Name in the host registry.
        blocks: Path of its blocks; ``{}`` stands for each number.
        stem: Module and end that is layer 0.
        paths: Site to (module path, end).
        norms: Paths of the norms of attention, cross-attention where there is some, and MLP, in that order.
        real: (batch, tokens) True = real; None where nothing is padding.
        calls: How many layers.
        prefix_tokens: Tokens that the model puts in front.
        memory: Module and end that is what cross-attention reads.
        stages: The stage of each layer from 1.
    """

    host: str
    blocks: str
    stem: tuple[str, str]
    paths: Mapping[str, tuple[str, str]]
    norms: tuple[str, ...]
    real: Tensor | None
    calls: int
    style: Literal["pre", "post"] = "pre"
    prefix_tokens: int = 0
    memory: tuple[str, str] | None = None
    stages: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StackEntry:
    """A tiny model with its stacks by name; the one of a model with one stack is called nothing."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Any]]
    stacks: Mapping[str, Stack]
    batch_first: bool = True

    def model(self) -> Any:
        """The model, with weights large enough that no branch or norm is near nothing or the identity."""
        torch.manual_seed(0)
        model = self.build().eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        return model


def real_tokens(lengths: tuple[int, ...], left: bool = False) -> Tensor:
    """(batch, tokens), True = real."""
    width, ends = max(lengths), torch.tensor(lengths)[:, None]
    return torch.arange(width) >= width - ends if left else torch.arange(width) < ends


def ids(real: Tensor, seed: int, pad: int = 1) -> Tensor:
    """Token ids with padding where nothing is real."""
    return torch.randint(5, VOCAB, real.shape, generator=torch.Generator().manual_seed(seed)).where(real, pad)


def pair() -> dict[str, Any]:
    """Source and target texts."""
    source, target = real_tokens(SOURCE), real_tokens(TARGET)
    return {
        "input_ids": ids(source, 2),
        "attention_mask": source.long(),
        "decoder_input_ids": ids(target, 3),
        "decoder_attention_mask": target.long(),
    }


def _t5(gated: bool) -> StackEntry:
    def build() -> nn.Module:
        sizes = {"d_model": DIM, "d_kv": 6, "d_ff": 24, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 2}
        kind = "gated-gelu" if gated else "relu"
        config = transformers.T5Config(vocab_size=VOCAB, feed_forward_proj=kind, **sizes, **SPECIAL)
        return transformers.T5Model(config)

    def stack(part: str, cross: bool, lengths: tuple[int, ...], calls: int) -> Stack:
        block, mlp = f"{part}.block.{{}}", 2 if cross else 1
        paths = {
            "normed": (f"{block}.layer.0.SelfAttention.k", "input"),
            "attention": (f"{block}.layer.0.SelfAttention.o", "output"),
            "mid": (f"{block}.layer.{mlp}.layer_norm", "input"),
            "mlp": (f"{block}.layer.{mlp}.DenseReluDense.wo", "output"),
        }
        if cross:
            paths["cross"] = (f"{block}.layer.1.EncDecAttention.o", "output")
        return Stack(
            "t5",
            block,
            stem=(f"{part}.block.0.layer.0", "input"),
            paths=paths,
            norms=tuple(f"{block}.layer.{i}.layer_norm" for i in range(mlp + 1)),
            real=real_tokens(lengths),
            calls=calls,
            memory=("decoder.block.0.layer.1.EncDecAttention.v", "input") if cross else None,
        )

    stacks = {"encoder": stack("encoder", False, SOURCE, 3), "decoder": stack("decoder", True, TARGET, 2)}
    return StackEntry(f"t5-{'gated' if gated else 'relu'}", build, pair, stacks)


def _whisper() -> StackEntry:
    frames = (12, 8, 6)  # of which two make a token

    def build() -> nn.Module:
        sizes = {"d_model": DIM, "encoder_layers": 3, "decoder_layers": 2, "num_mel_bins": 4, "max_source_positions": 6}
        heads = {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
        wide = {f"{part}_ffn_dim": 24 for part in ("encoder", "decoder")}
        special = {**SPECIAL, "pad_token_id": 1, "decoder_start_token_id": 2}
        config = transformers.WhisperConfig(
            vocab_size=VOCAB, max_target_positions=16, **sizes, **heads, **wide, **special
        )
        return transformers.WhisperModel(config)

    def batch() -> dict[str, Any]:
        sound = torch.randn(BATCH, 4, 12, generator=torch.Generator().manual_seed(4))
        texts = {key: value for key, value in pair().items() if key.startswith("decoder")}
        return {"input_features": sound, "attention_mask": real_tokens(frames).long(), **texts}

    def stack(part: str, cross: bool, real: Tensor, calls: int) -> Stack:
        block = f"{part}.layers.{{}}"
        paths = {
            "normed": (f"{block}.self_attn.q_proj", "input"),
            "attention": (f"{block}.self_attn.out_proj", "output"),
            "mid": (f"{block}.final_layer_norm", "input"),
            "mlp": (f"{block}.fc2", "output"),
        }
        norms = [f"{block}.self_attn_layer_norm", f"{block}.final_layer_norm"]
        if cross:
            paths["cross"] = (f"{block}.encoder_attn.out_proj", "output")
            norms.insert(1, f"{block}.encoder_attn_layer_norm")
        return Stack(
            "whisper",
            block,
            stem=(f"{part}.layers.0.self_attn_layer_norm", "input"),
            paths=paths,
            norms=tuple(norms),
            real=real,
            calls=calls,
            memory=("encoder.layer_norm", "output") if cross else None,
        )

    tokens = real_tokens(tuple(length // 2 for length in frames))
    stacks = {
        "encoder": stack("encoder", False, tokens, 3),
        "decoder": stack("decoder", True, real_tokens(TARGET), 2),
    }
    return StackEntry("whisper", build, batch, stacks)


def _towers(name: str, family: str, class_tokens: int) -> StackEntry:
    def build() -> nn.Module:
        sizes = {"num_attention_heads": 2, "intermediate_size": 24, "projection_dim": 8}
        text = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": VOCAB, "max_position_embeddings": 16}
        special = {"pad_token_id": 1, "bos_token_id": 3, "eos_token_id": 4, "projection_size": 24}
        vision = {"hidden_size": 24, "num_hidden_layers": 3, "image_size": 8, "patch_size": 4}
        config = getattr(transformers, f"{family}Config")(
            text_config={**sizes, **text, **special}, vision_config={**sizes, **vision}, projection_dim=8
        )
        return getattr(transformers, f"{family}Model")(config)

    def batch() -> dict[str, Any]:
        real = real_tokens(SOURCE)
        pixels = torch.randn(BATCH, 3, 8, 8, generator=torch.Generator().manual_seed(5))
        return {"input_ids": ids(real, 2), "attention_mask": real.long(), "pixel_values": pixels}

    def stack(part: str, real: Tensor | None, calls: int, prefix: int) -> Stack:
        block = f"{part}.encoder.layers.{{}}"
        return Stack(
            name,
            block,
            stem=(f"{part}.encoder.layers.0.layer_norm1", "input"),
            paths={
                "normed": (f"{block}.self_attn.k_proj", "input"),
                "attention": (f"{block}.self_attn.out_proj", "output"),
                "mid": (f"{block}.layer_norm2", "input"),
                "mlp": (f"{block}.mlp.fc2", "output"),
            },
            norms=(f"{block}.layer_norm1", f"{block}.layer_norm2"),
            real=real,
            calls=calls,
            prefix_tokens=prefix,
        )

    stacks = {
        "text": stack("text_model", real_tokens(SOURCE), 2, 0),
        "vision": stack("vision_model", None, 3, class_tokens),
    }
    return StackEntry(name, build, batch, stacks)


def _torch_stacks(norm_first: bool, batch_first: bool, alone: bool) -> StackEntry:
    """nn.Transformer, or its decoder alone."""

    def build() -> nn.Module:
        whole = nn.Transformer(DIM, 2, 3, 2, 24, norm_first=norm_first, batch_first=batch_first)
        return whole.decoder if alone else whole

    def vectors(width: int, seed: int) -> Tensor:
        made = torch.randn(BATCH, width, DIM, generator=torch.Generator().manual_seed(seed))
        return made if batch_first else made.transpose(0, 1)

    def batch() -> dict[str, Any]:
        source, target = vectors(max(SOURCE), 6), vectors(max(TARGET), 7)
        causal = nn.Transformer.generate_square_subsequent_mask(max(TARGET))
        masks = {
            "tgt_mask": causal.isinf(),
            "tgt_key_padding_mask": ~real_tokens(TARGET),
            "memory_key_padding_mask": ~real_tokens(SOURCE),
        }
        if alone:
            return {"tgt": target, "memory": source, **masks}
        return {"src": source, "tgt": target, "src_key_padding_mask": ~real_tokens(SOURCE), **masks}

    def stack(part: str, cross: bool, lengths: tuple[int, ...], calls: int) -> Stack:
        block, last = f"{part}layers.{{}}", 3 if cross else 2
        into_mlp = (f"{block}.norm{last}", "input") if norm_first else (f"{block}.linear1", "input")
        paths = {
            "normed": (f"{block}.self_attn", "input"),
            "attention": (f"{block}.self_attn", "output"),
            "mid": into_mlp,
            "mlp": (f"{block}.linear2", "output"),
        }
        if cross:
            paths["cross"] = (f"{block}.multihead_attn", "output")
        memory = (f"{part}layers.0.multihead_attn", "second input")
        return Stack(
            "torch_decoder" if cross else "torch_encoder",
            block,
            stem=(block.format(0), "input"),
            paths=paths,
            norms=tuple(f"{block}.norm{i + 1}" for i in range(last)),
            real=real_tokens(lengths),
            calls=calls,
            style="pre" if norm_first else "post",
            memory=memory if cross else None,
        )

    if alone:
        stacks = {"": stack("", True, TARGET, 2)}
    else:
        stacks = {"encoder": stack("encoder.", False, SOURCE, 3), "decoder": stack("decoder.", True, TARGET, 2)}
    order, first = "pre" if norm_first else "post", "batch" if batch_first else "tokens"
    name = f"torch-{'decoder' if alone else 'both'}-{order}-{first}-first"
    return StackEntry(name, build, batch, stacks, batch_first)


def _swin(window: int, side: int, name: str) -> StackEntry:
    def build() -> nn.Module:
        sizes = {"embed_dim": DIM, "depths": [2, 2, 1], "num_heads": [2, 4, 4], "window_size": window}
        return transformers.SwinModel(transformers.SwinConfig(image_size=side, patch_size=2, mlp_ratio=1.5, **sizes))

    block = "encoder.layers.{}.blocks.{}"
    stack = Stack(
        "swin",
        block,
        stem=("embeddings", "output"),
        paths={
            "normed": (f"{block}.layernorm_before", "output"),
            "attention": (f"{block}.drop_path", "output"),
            "mid": (f"{block}.layernorm_after", "input"),
            "mlp": (f"{block}.mlp.fc2", "output"),
        },
        norms=(f"{block}.layernorm_before", f"{block}.layernorm_after"),
        real=None,
        calls=5,
        stages=(0, 0, 1, 1, 2),
    )
    pixels = {"pixel_values": torch.randn(BATCH, 3, side, side, generator=torch.Generator().manual_seed(8))}
    return StackEntry(name, build, lambda: pixels, {"": stack})


STACK_ENTRIES = (
    _t5(gated=False),
    _t5(gated=True),
    _whisper(),
    _towers("clip", "CLIP", 1),
    _towers("siglip", "Siglip", 0),
    _torch_stacks(norm_first=False, batch_first=True, alone=False),
    _torch_stacks(norm_first=True, batch_first=False, alone=False),
    _torch_stacks(norm_first=True, batch_first=True, alone=True),
    _torch_stacks(norm_first=False, batch_first=False, alone=True),
    _swin(window=2, side=16, name="swin-shifted"),
    # Five patches a side in the second stage: windows of two are filled up.
    _swin(window=2, side=20, name="swin-filled-up"),
)
