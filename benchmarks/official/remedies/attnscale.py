"""AttnScale's attention for DeiT."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.official.side_by_side import Case, Comparison, Mlp, deit, drawn, edited, encoder, tokens
from benchmarks.official.sources import Source, definitions

REPOSITORY = ("VITA-Group/ViT-Anti-Oversmoothing", "989559fb256ef43bed04ca210729aade352b49c2")
ATTNSCALE = Source(*REPOSITORY, "attnscale.py", "5ff3d89638f32ae49b066da3adda3668456254dded808f453e9c2045ac153b83")


def cases(folder: Path, dtype: torch.dtype) -> list[Case]:
    """One learned number per head."""
    code = definitions(ATTNSCALE.read(folder), ["Attention", "Block"], {"Mlp": Mlp})
    plain = encoder(dtype)
    blocks = deit(code.Block, plain.layers, dtype)
    ours, edits = edited(plain, "attnscale")
    for block, edit in zip(blocks, edits, strict=True):
        drawn(block.attn.lamb, -0.9, 2.0)
        edit.omega.data.copy_(block.attn.lamb)
    return [Case("ω of every head drawn from −0.9 to 2", nn.Sequential(*blocks), ours, tokens(dtype))]


COMPARISON = Comparison("attnscale", [ATTNSCALE], cases)
