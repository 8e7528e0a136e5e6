"""A tiny ViT with a class token and a tiny BERT on a padded batch, with hooks written here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.presets.references import Matrix, Stream

TEXTS = [
    "the cat sat on a mat",
    "one dog run past while rain fell over hills and the cat saw",
    "the rain fell and the cat sat",
    "a dog sat on the cat while one mat saw hills",
    "the hills and the rain and the mat",
    "the cat saw a dog and the rain",
]


def tiny_vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(7)
    return ViTModel(
        ViTConfig(
            hidden_size=24,
            num_hidden_layers=3,
            num_attention_heads=3,
            intermediate_size=48,
            image_size=24,
            patch_size=4,
            initializer_range=0.3,
        ),
        add_pooling_layer=False,
    ).eval()


def images() -> Tensor:
    return torch.randn(5, 3, 24, 24, generator=torch.Generator().manual_seed(3))


def vit_stream(model: nn.Module, pixels: Tensor) -> Stream:
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    mids = [layer.layernorm_after for layer in layers]
    outputs, between = _watched(list(layers), mids, lambda: model(pixels))
    return Stream([_split(x) for x in outputs], [_split(x) for x in between])


def bert_stream(model: nn.Module, encoded: dict[str, Tensor], special: frozenset[int]) -> Stream:
    outputs, _ = _watched(list(model.encoder.layer), [], lambda: model(**encoded))
    real = encoded["attention_mask"].bool()
    ids = [row[kept].tolist() for row, kept in zip(encoded["input_ids"], real, strict=True)]
    return Stream([_split(x, real) for x in outputs], [], ids, special)


def _watched(layers: list[Any], mids: list[Any], run: Callable[[], Any]) -> tuple[list[Tensor], list[Tensor]]:
    outputs: list[Tensor] = []
    between: list[Tensor] = []
    handles = [layers[0].register_forward_pre_hook(lambda module, args: outputs.append(args[0]))]
    handles += [layer.register_forward_hook(lambda module, args, out: outputs.append(_tensor(out))) for layer in layers]
    handles += [norm.register_forward_pre_hook(lambda module, args: between.append(args[0])) for norm in mids]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return outputs, between


def _tensor(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


def _split(x: Tensor, real: Tensor | None = None) -> list[Matrix]:
    rows = [one if real is None else one[real[place]] for place, one in enumerate(x)]
    return [row.double().numpy().astype(np.float64) for row in rows]
