"""σReparam's linear maps, in the place of those of a block."""

from __future__ import annotations

import functools
import inspect
import typing
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.official.remedies.featscale import VIT
from benchmarks.official.side_by_side import DIM, HEADS, Case, Comparison, Mlp, drawn, edited, encoder, tokens
from benchmarks.official.sources import Source, definitions

LAYERS = Source(
    "apple/ml-sigma-reparam",
    "fea4e359126f812bd3e0a12234c56330fe4b5fa2",
    "vision/layers.py",
    "9b8eaae92a76d242fd8fa6a48c534c364c99b92f5a4ca18b0266607402d33e69",
)
# Passes in training mode before the one that is compared, after weights have moved: each takes a step of its own.
PASSES = 4


def cases(folder: Path, dtype: torch.dtype) -> list[Case]:
    """As it starts, and after weights have moved and γ has."""
    return [_case(folder, dtype, moved) for moved in (False, True)]


def _case(folder: Path, dtype: torch.dtype, moved: bool) -> Case:
    given = {"t": typing, "functools": functools, "inspect": inspect}
    names = ["SpectralNormedWeight", "SNLinear", "SNConv2d", "convert_layer", "convert_to_sn"]
    code = definitions(LAYERS.read(folder), names, given)
    block = definitions(VIT.read(folder), ["Attention", "Block"], {"Mlp": Mlp}).Block(DIM, HEADS, 2.0, qkv_bias=True)
    plain = encoder(dtype, depth=1)
    layer = plain.layers[0]
    for one, other in ((block.norm1, layer.norm1), (block.norm2, layer.norm2)):
        one.eps = other.eps
        one.load_state_dict(other.state_dict())
    code.convert_to_sn(block)  # which draws weights anew
    block.to(dtype).train()
    theirs = {
        "self_attn.in_proj": block.attn.qkv,
        "self_attn.out_proj": block.attn.proj,
        "linear1": block.mlp.fc1,
        "linear2": block.mlp.fc2,
    }
    with torch.no_grad():
        for name, linear in theirs.items():
            drawn(linear.bias, -0.5, 0.5)
            for part in ("weight", "bias"):
                to = f"{name}_{part}" if name.endswith("in_proj") else f"{name}.{part}"
                layer.get_parameter(to).copy_(getattr(linear, part))
    ours, [edit] = edited(plain, "sigma_reparam", variant="official")
    if moved:
        _move(theirs, dict(edit.weights.items()), ours)
    x = tokens(dtype)
    if moved:
        for _ in range(PASSES):
            block(x)
            ours(x)
    return Case(f"after {PASSES} passes on moved weights, γ drawn" if moved else "as it starts", block, ours, x)


def _move(theirs: dict[str, nn.Module], mine: dict[str, nn.Module], ours: nn.Module) -> None:
    """The same noise on both weights, the same γ for both."""
    raw = {tuple(one.shape): one for one in ours.parameters() if one.ndim == 2}
    with torch.no_grad():
        for name, linear in theirs.items():
            weight: Tensor = linear.weight  # type: ignore[assignment]
            noise = 0.05 * torch.randn_like(weight)
            weight.add_(noise)
            raw[tuple(weight.shape)].add_(noise)
            sigma: Tensor = linear.sigma  # type: ignore[assignment]
            drawn(sigma, 0.5, 2.0)
            [key] = [key for key in mine if key.endswith(name.replace(".", "_")) or name.rpartition(".")[2] in key]
            mine[key].gamma.data.copy_(sigma)  # type: ignore[union-attr, operator]


COMPARISON = Comparison(
    "sigma_reparam", [LAYERS, VIT], cases, "a block of ViT-Anti-Oversmoothing's `vit.py`, by their `convert_to_sn`"
)
