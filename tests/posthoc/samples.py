"""Embeddings that are anything but isotropic."""

from __future__ import annotations

import torch
from torch import Tensor


def anisotropic(samples: int = 200, dimensions: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, dimensions, dtype=torch.float64, generator=generator)
    mixing = torch.randn(dimensions, dimensions, dtype=torch.float64, generator=generator)
    return (x @ mixing) * torch.linspace(0.1, 3.0, dimensions, dtype=torch.float64) + 5.0
