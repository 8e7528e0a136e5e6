"""FeatScale's block for DeiT, which adds its two terms twice."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.official.remedies.attnscale import REPOSITORY
from benchmarks.official.side_by_side import Case, Comparison, Mlp, deit, drawn, edited, encoder, tokens
from benchmarks.official.sources import Source, definitions

FEATSCALE = Source(*REPOSITORY, "featscale.py", "ecf3e82199665dcad1ab05a5c28a3bb2f01dab075807b22ef352eecc892f5335")
VIT = Source(*REPOSITORY, "vit.py", "afd355f2ccfd43f0780d1586d5c1b737a491df306dc53d2f9317fce6786b740f")


def cases(folder: Path, dtype: torch.dtype) -> list[Case]:
    """Two learned numbers per channel."""
    attention = definitions(VIT.read(folder), ["Attention"]).Attention
    code = definitions(FEATSCALE.read(folder), ["Block"], {"Attention": attention, "Mlp": Mlp})
    plain = encoder(dtype)
    blocks = deit(code.Block, plain.layers, dtype)
    ours, edits = edited(plain, "featscale", variant="official")
    for block, edit in zip(blocks, edits, strict=True):
        for theirs, mine in ((block.lamb1, edit.dc), (block.lamb2, edit.hc)):
            drawn(theirs, -0.5, 1.0)
            mine.data.copy_(theirs)
    return [Case("s and t of every channel drawn from −0.5 to 1", nn.Sequential(*blocks), ours, tokens(dtype))]


COMPARISON = Comparison("featscale", [FEATSCALE, VIT], cases)
