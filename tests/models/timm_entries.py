"""Entries of timm's ViT, and a stand-in laid out like its block, which needs no timm."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from tests.models.entry import DIM, LAYERS, Entry, Padding, images


class StandIn(type):
    """For a class that has another's name: it is pickled by the name that it has here."""


def stand_in(name: str) -> type:
    found: type = globals()[name]
    return found


copyreg.pickle(StandIn, lambda kind: (stand_in, (kind.__name__,)))  # type: ignore[arg-type]


class Attention(nn.Module, metaclass=StandIn):
    """Heads whose queries, keys and values come out of one linear map, in this order."""

    def __init__(self, heads: int, qk_norm: bool, fused: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.fused_attn = heads, DIM // heads, fused
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.q_norm: nn.Module = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm: nn.Module = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop, self.norm = nn.Dropout(0.0), nn.Identity()
        self.proj, self.proj_drop = nn.Linear(DIM, DIM), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        query, key, value = self.q_norm(qkv[0]), self.k_norm(qkv[1]), qkv[2]
        if self.fused_attn:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            mixed = self.attn_drop((query * self.scale @ key.transpose(-2, -1)).softmax(dim=-1)) @ value
        return self.proj_drop(self.proj(self.norm(mixed.transpose(1, 2).reshape(x.shape))))


class LayerScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((DIM,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module, metaclass=StandIn):
    def __init__(self, attention: Attention, scaled: bool) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(DIM), attention, nn.LayerNorm(DIM)
        self.ls1: nn.Module = LayerScale() if scaled else nn.Identity()
        self.ls2: nn.Module = LayerScale() if scaled else nn.Identity()
        self.drop_path1, self.drop_path2 = nn.Identity(), nn.Identity()
        self.mlp = nn.Sequential(nn.Linear(DIM, 24), nn.GELU(), nn.Linear(24, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


# A host is known by these names.
Block.__module__, Block.__qualname__ = "timm.models.vision_transformer", "Block"
Attention.__module__ = Attention.forward.__module__ = "timm.layers.attention"


class VisionTransformer(nn.Module):
    num_prefix_tokens = 1

    def __init__(self, heads: int = 2, qk_norm: bool = False, fused: bool = True, scaled: bool = False) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, 4, stride=4)
        self.cls_token, self.norm_pre = nn.Parameter(torch.randn(1, 1, DIM)), nn.Identity()
        self.blocks = nn.Sequential(*(Block(Attention(heads, qk_norm, fused), scaled) for _ in range(LAYERS)))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).mT
        tokens: Tensor = self.blocks(self.norm_pre(torch.cat([self.cls_token.expand(len(x), -1, -1), patches], 1)))
        return tokens


def entry_of(variant: str, build: Callable[[], nn.Module], prefix_tokens: int = 1) -> Entry:
    layer = "blocks.{}"

    def batch(padding: Padding) -> dict[str, Any]:
        return {"x": images(padding)["pixel_values"]}

    return Entry(
        "timm_vit",
        variant,
        build,
        style="pre",
        paths={
            "normed": (f"{layer}.attn.qkv", "input"),
            "attention": (f"{layer}.ls1", "output"),
            "mid": (f"{layer}.norm2", "input"),
            "mlp": (f"{layer}.ls2", "output"),
        },
        norms=(f"{layer}.norm1", f"{layer}.norm2"),
        blocks=layer,
        stem=("norm_pre", "output"),
        batch=batch,
        paddings=("none",),
        hidden_states=False,
        prefix_tokens=prefix_tokens,
    )


STAND_INS = (
    entry_of("stand-in", VisionTransformer),
    entry_of("stand-in-scaled", lambda: VisionTransformer(heads=4, qk_norm=True, fused=False, scaled=True)),
)
