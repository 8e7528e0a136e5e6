"""GFSA's attention for DeiT."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.official.side_by_side import Case, Comparison, Mlp, deit, drawn, edited, encoder, tokens
from benchmarks.official.sources import Source, definitions

GFSA = Source(
    "jeongwhanchoi/GFSA",
    "3aa9657a2b87c8bf22f3652cde25fc27ec86aa4d",
    "Image/gfsa.py",
    "32a313d99c7e86ef4169098f375e17157480d7b3abbb444d699d867918753870",
)


def cases(folder: Path, dtype: torch.dtype) -> list[Case]:
    """One learned number per head."""
    code = definitions(GFSA.read(folder), ["Attention", "Block"], {"Mlp": Mlp})
    plain = encoder(dtype)
    blocks = deit(code.Block, plain.layers, dtype)
    ours, edits = edited(plain, "gfsa", variant="official", order=4)
    for block, edit in zip(blocks, edits, strict=True):
        drawn(block.attn.lamb, -1.0, 1.0)
        edit.w_K.data.copy_(block.attn.lamb)
    return [Case("K = 4, w_K of every head drawn from −1 to 1", nn.Sequential(*blocks), ours, tokens(dtype))]


COMPARISON = Comparison("gfsa", [GFSA], cases)
