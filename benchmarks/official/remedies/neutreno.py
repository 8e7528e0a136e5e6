"""NeuTRENO's block for DeiT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.official.side_by_side import Case, Comparison, Mlp, deit, edited, encoder, tokens
from benchmarks.official.sources import Source, definitions

NEUTRENO = Source(
    "tamnguyen9520/NeuTRENO_NeurIPS2024",
    "8d8cb0d354ace1efd7e9bdbf231bdd31e40830f6",
    "DeiT/neutreno.py",
    "d0a273b1514d4e3e2006b917268cc280e8765f6270cf425471cd580b3da8ded4",
)


def cases(folder: Path, dtype: torch.dtype) -> list[Case]:
    """λ is 0.6 there; other values are set on their modules."""
    block = definitions(NEUTRENO.read(folder), ["Attention", "Block"], {"Mlp": Mlp}).Block
    return [_case(block, dtype, lam) for lam in (0.6, 0.4)]


def _case(block: Any, dtype: torch.dtype, lam: float) -> Case:
    plain = encoder(dtype)
    blocks = deit(block, plain.layers, dtype)
    for number, one in enumerate(blocks):
        one.layerth = one.attn.layerth = number
        one.attn.alpha = lam

    def theirs(x: Tensor) -> Tensor:
        x, first_values = blocks[0](x)
        for one in blocks[1:]:
            x = one(x, v0=first_values)
        return x

    return Case(f"λ = {lam}", theirs, edited(plain, "neutreno", lam=lam)[0], tokens(dtype))


COMPARISON = Comparison("neutreno", [NEUTRENO], cases)
