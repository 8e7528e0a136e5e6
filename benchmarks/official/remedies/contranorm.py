"""ContraNorm in place of the norms of DeiT's blocks, and in front of the norm of BERT's attention."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.official.remedies.featscale import VIT
from benchmarks.official.side_by_side import (
    Case,
    Comparison,
    Mlp,
    bert,
    deit,
    drawn,
    edited,
    encoder,
    read,
    tokens,
)
from benchmarks.official.sources import Source, definitions

REPOSITORY = ("PKU-ML/ContraNorm", "c9bed6a67bedb813717de07a9768c0ccd13347ad")
FOR_VIT = Source(
    *REPOSITORY, "ViT_imagenet/models.py", "0e48b8204c8e6d8138ea86767692b3f07698d822382e97aba654380d7ce53a88"
)
FOR_BERT = Source(
    *REPOSITORY,
    "BERT_gleu/transformers/models/bert/modeling_bert.py",
    "18678e2baef979578690615f9c24ea34bd69214915ed427b22f44a107d81b3c8",
)
# Theirs, and ours for the same.
SETTINGS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"scale": 0.2}, {"scale": 0.2}),
    ({"scale": 0.2, "temp": 0.5}, {"scale": 0.2, "temperature": 0.5}),
    ({"scale": 0.2, "identity": True}, {"scale": 0.2, "identity": True}),
    ({"scale": 0.2, "dual_norm": True}, {"scale": 0.2, "dual": True}),
    ({"scale": 0.2, "pre_norm": True}, {"scale": 0.2, "unit": True}),
    ({"scale": 0.2, "learnable": True}, {"scale": 0.2, "learn": "channel"}),
    ({"scale": 0.2, "learnable": True, "positive": True}, {"scale": 0.2, "learn": "positive"}),
    ({"scale": 0.2, "learnable": True, "identity": True}, {"scale": 0.2, "learn": "channel", "identity": True}),
)


def cases(folder: Path, dtype: torch.dtype) -> list[Case]:
    """Every setting of the code for ViT, and the one of the code for BERT."""
    norm = definitions(FOR_VIT.read(folder), ["ContraNorm"]).ContraNorm
    block = definitions(VIT.read(folder), ["Attention", "Block"], {"Mlp": Mlp}).Block
    return [*(_vit(norm, block, dtype, *both) for both in SETTINGS), _bert(folder, dtype)]


def _vit(norm: Any, block: Any, dtype: torch.dtype, theirs: dict[str, Any], ours: dict[str, Any]) -> Case:
    plain = encoder(dtype)
    blocks = deit(partial(block, norm_layer=partial(norm, **theirs)), plain.layers, dtype)
    model, edits = edited(plain, "contranorm", variant="official", **ours)
    if theirs.get("learnable"):
        for one, edit in zip(blocks, edits, strict=True):
            # Theirs has a scale for each norm, ours for each block.
            drawn(one.norm1.scale_param, -2.0 if theirs.get("positive") else 0.05, 0.4)
            one.norm2.scale_param.data.copy_(one.norm1.scale_param)
            edit.scale.data.copy_(one.norm1.scale_param)
    what = ", ".join(f"{key}={value}" for key, value in theirs.items())
    return Case(f"ViT: {what}", nn.Sequential(*blocks), model, tokens(dtype))


def _bert(folder: Path, dtype: torch.dtype) -> Case:
    code = definitions(FOR_BERT.read(folder), ["ContraNorm", "ContraNormV2", "BertSelfOutput"])
    plain = bert(dtype)
    theirs, config = copy.deepcopy(plain), SimpleNamespace(scale=0.1, center=False, use_v2=False, pos="7")
    for key in ("hidden_size", "layer_norm_eps", "hidden_dropout_prob"):
        setattr(config, key, getattr(plain.config, key))
    for layer in theirs.encoder.layer:
        output = code.BertSelfOutput(config).to(dtype)
        output.load_state_dict(layer.attention.output.state_dict())
        layer.attention.output = output
    ours = edited(plain, "contranorm", variant="official", scale=0.1)[0]
    return Case("BERT: scale=0.1, pos=7", read(theirs), read(ours), tokens(dtype))


COMPARISON = Comparison(
    "contranorm",
    [FOR_VIT, FOR_BERT, VIT],
    cases,
    "their modules for ViT as the norms of a block of ViT-Anti-Oversmoothing's `vit.py`, which is timm's",
)
