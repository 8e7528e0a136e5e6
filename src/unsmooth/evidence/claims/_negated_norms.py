"""Whole networks with the weights of the norms before their attention negated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.models import demo
from unsmooth.models.load import load
from unsmooth.networks import Block, ViT, ViTConfig
from unsmooth.remedies import apply
from unsmooth.scanning import scan

VIT = ViTConfig(depth=6, dim=48, heads=3, hidden=96, image=16, patch=4, classes=10)
VARIANTS: dict[str, str | None] = {"plain": None, "sharpen": "sharpen", "smooth": "smooth"}
IMAGES, BATCH = 8, 8


def negate_attention_norms(model: nn.Module) -> None:
    """γ → −γ in the norm before attention, in every pre-norm block of a network of ours, in place.

    Queries and keys are both read through this norm, so without biases the attention of a block stays as it is. Trained
    networks have biases, in the norm too, which are not negated.
    """
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, Block) and block.style == "pre":
                block.norm_attention.weight.neg_()


def curves(model: nn.Module, images_BCHW: Tensor) -> dict[str, list[float]]:
    """The t_sim at every layer, embedding first: with the norms as they are, and negated; the model stays as it was."""
    found = {"as it is": _curve(model, images_BCHW)}
    negate_attention_norms(model)
    found["negated"] = _curve(model, images_BCHW)
    negate_attention_norms(model)
    return found


def drawn_networks(seeds: Sequence[int]) -> dict[str, list[dict[str, list[float]]]]:
    """Per variant and seed: curves of an untrained ViT with plain, sharpening and smoothing weights."""
    found: dict[str, list[dict[str, list[float]]]] = {}
    for variant, remedy in VARIANTS.items():
        for seed in seeds:
            model = ViT(VIT, seed=seed).eval()
            model = apply(model, remedy, basis="gram", eigenvalues="rescale") if remedy else model
            generator = torch.Generator().manual_seed(seed)
            images = torch.randn(IMAGES, VIT.channels, VIT.image, VIT.image, generator=generator)
            found.setdefault(variant, []).append(curves(model, images))
    return found


def trained_networks(batches: int) -> dict[str, list[dict[str, list[float]]]] | None:
    """Per model and batch of images: curves of the trained models that come with the package; None without them."""
    if not demo.built():
        return None
    found: dict[str, list[dict[str, list[float]]]] = {}
    for variant in demo.NAMES:
        try:
            model, images = load(f"{demo.PREFIX}{variant}"), demo.shown(f"{demo.PREFIX}{variant}", BATCH * batches)
        except UnsmoothError:
            return None
        found[variant] = [curves(model, images_BCHW) for images_BCHW in torch.split(images, BATCH)]
    return found


def _curve(model: nn.Module, images_BCHW: Tensor) -> list[float]:
    found: Any = scan(model, images_BCHW, metrics=["token_similarity"], progress=False)
    return [row.mean for row in found.curve("token_similarity")]
