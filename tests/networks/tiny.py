"""Small networks, and what they are fed."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unsmooth.networks import DecoderConfig, EncoderConfig, ViTConfig

M = TypeVar("M", bound=nn.Module)

SIZES: dict[str, Any] = {"depth": 3, "dim": 16, "heads": 2, "hidden": 24}
VIT = ViTConfig(image=8, patch=4, classes=5, **SIZES)
ENCODER = EncoderConfig(vocabulary=40, length=12, norm="post", embedding_norm=True, **SIZES)
DECODER = DecoderConfig(vocabulary=40, length=12, memory=5, **SIZES)


def shaken(network: M, size: float = 0.3) -> M:
    """In eval mode, with weights so large that no branch is near nothing and no norm near the identity."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return network.eval()


def inputs_of(network: nn.Module, rows: int = 3, tokens: int = 6, seed: int = 0) -> Tensor:
    """Images or token ids."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(network.config, ViTConfig):
        weight = next(network.parameters())
        return torch.randn(rows, 3, 8, 8, generator=generator).to(weight.dtype)
    return torch.randint(0, 40, (rows, tokens), generator=generator)


@torch.no_grad()
def outputs_of(network: nn.Module, inputs: Tensor | None = None, **call: Any) -> Tensor:
    """Logits alone."""
    found = network(inputs_of(network) if inputs is None else inputs, **call)
    return found[0] if isinstance(found, tuple) else found
